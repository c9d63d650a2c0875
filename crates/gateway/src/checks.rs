//! Checks of stores without a gateway: by an operator, and before a recovery raises any head (ADR 0008). Crate `store`
//! does the checks; `admin/checks.rs` calls them where a gateway decides.

use holdfast_set::random::random_u128;
use holdfast_store::{StoreError, StoreOptions, Stores, check};
use holdfast_types::Placement;
use std::path::Path;
use std::time::Duration;

pub use holdfast_store::{CHECK_LIMIT, CheckError, CheckReport, check_allowed, check_credentials_file};

/// The stores in a text, each once. The text is one URL, several URLs with their write quorum, or, during a change,
/// both lists.
///
/// # Errors
/// The text is invalid.
pub fn urls_of(text: &str) -> Result<Vec<String>, StoreError> {
    let placement = Placement::parse(text);
    let mut urls: Vec<String> = Vec::new();
    for list in std::iter::once(&placement.stores).chain(placement.next.as_ref().map(|(_, to)| to)) {
        let stores = Stores::parse(list).map_err(StoreError::Url)?;
        for url in stores.urls() {
            if !urls.contains(url) {
                urls.push(url.clone());
            }
        }
    }
    Ok(urls)
}

/// Checks the one store at `url`, in `limit` plus a few seconds. Its keys come from `credentials_file` if there is one.
/// `existing`: refuse a directory that is not a store yet, instead of making it one.
///
/// # Errors
/// [`CheckError`], also if it cannot be opened.
pub async fn check_store(
    url: &str,
    credentials_file: Option<&Path>,
    existing: bool,
    limit: Duration,
) -> Result<CheckReport, CheckError> {
    let credentials_file = credentials_file.map(Path::to_path_buf);
    let options = StoreOptions { existing, credentials_file, ..StoreOptions::default() };
    let store = holdfast_store::open_aside(url, move |url| holdfast_store::open(url, &options)).await?;
    check(&*store, random_u128(), limit).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_of_a_text_is_named_once() {
        let urls = |text: &str| urls_of(text).map(|urls| urls.join(" "));
        assert_eq!(urls("s3://bucket-a/p"), Ok("s3://bucket-a/p".into()));
        assert_eq!(urls("w=2 file:///a file:///b file:///c"), Ok("file:///a file:///b file:///c".into()));
        let changed = "file:///a => c=2 w=2 file:///b file:///a file:///c";
        assert_eq!(urls(changed), Ok("file:///a file:///b file:///c".into()));
        assert!(urls("nowhere").is_err());
    }

    #[tokio::test]
    async fn a_directory_passes_and_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().join("store").display());
        let refused = check_store(&url, None, true, CHECK_LIMIT).await.unwrap_err();
        assert!(!refused.is_undecided() && refused.to_string().contains("is not there"), "{refused}");
        let report = check_store(&url, None, false, CHECK_LIMIT).await.unwrap();
        assert_eq!(report.place, url);
        let left: Vec<_> = std::fs::read_dir(dir.path().join("store/check")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        check_store(&url, None, true, CHECK_LIMIT).await.unwrap();
    }
}
