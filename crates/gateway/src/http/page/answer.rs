//! Answers of the page, and what a browser may do with them (WEB-H3, WEB-H6).

use super::html::Html;
use axum::http::StatusCode;
use axum::http::header::{self, HeaderName};
use axum::response::{IntoResponse, Response};

pub(super) const HTML: &str = "text/html; charset=utf-8";

/// What a browser may do with the page.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                                 connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The same with a page that has forms: it sends them here, and runs no script at all.
pub(super) const FORM_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; \
                                      form-action 'self'; frame-ancestors 'none'";

/// Of a page with forms. With `no-referrer` browsers say `Origin: null` of a form, also to where its page is from.
pub(super) const FORM_REFERRER: &str = "same-origin";

fn bound(policy: &'static str, referrer: &'static str) -> [(HeaderName, &'static str); 6] {
    [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, referrer),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ]
}

/// A part of the page at `/`.
pub(super) fn told(kind: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, kind)], bound(POLICY, "no-referrer"), body).into_response()
}

/// A page that may have forms.
pub(super) fn with_forms(status: StatusCode, page: Html) -> Response {
    let headers = bound(FORM_POLICY, FORM_REFERRER);
    (status, [(header::CONTENT_TYPE, HTML)], headers, page.finish()).into_response()
}

/// After a POST: the browser gets `place` by a GET, so that a reload of it sends nothing again.
pub(super) fn see_other(place: String) -> Response {
    let headers = bound(FORM_POLICY, FORM_REFERRER);
    (StatusCode::SEE_OTHER, [(header::LOCATION, place)], headers).into_response()
}
