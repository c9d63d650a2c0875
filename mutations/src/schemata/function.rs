//! The functions of a source file, and where their bodies are.

use anyhow::{Context, Result};
use std::ops::Range;
use syn::visit::{self, Visit};

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// Bytes between the braces of the body.
    pub(super) body: Range<usize>,
    /// Why the body cannot be chosen at run time; `None`: it can.
    pub(super) refused: Option<&'static str>,
}

impl Function {
    pub(super) fn holds(&self, part: &Range<usize>) -> bool {
        self.body.start <= part.start && part.end <= self.body.end
    }

    /// Whether the other one is inside this one.
    pub(super) fn is_around(&self, other: &Self) -> bool {
        self.body != other.body && self.holds(&other.body)
    }
}

/// All functions of a file: free ones, methods, methods of traits, and those inside other functions. A function that a
/// macro defines is not found.
///
/// # Errors
/// When the text is no Rust.
pub(super) fn functions(text: &str) -> Result<Vec<Function>> {
    let file = syn::parse_file(text).map_err(|error| {
        let at = error.span().start();
        anyhow::anyhow!("line {}, column {}: {error}", at.line, at.column + 1)
    })?;
    let mut found = Found(Vec::new());
    found.visit_file(&file);
    for function in &found.0 {
        text.get(function.body.clone()).with_context(|| format!("{}: its body is not in the text", function.name))?;
    }
    Ok(found.0)
}

/// Whether this text can stand between the braces of a function.
pub(super) fn is_body(text: &str) -> bool {
    // The line break ends a comment at the end of the text.
    syn::parse_str::<syn::Block>(&format!("{{{text}\n}}")).is_ok()
}

struct Found(Vec<Function>);

impl Found {
    fn add(&mut self, sig: &syn::Signature, attrs: &[syn::Attribute], block: &syn::Block) {
        let refused = if sig.constness.is_some() {
            Some("a const fn cannot ask which bug is chosen")
        } else if returns_hidden(&sig.output) {
            Some("a fn that returns `impl Trait` has one type only")
        } else if attrs.iter().any(|attr| matches!(attr.style, syn::AttrStyle::Inner(_))) {
            Some("a fn with an attribute inside of its body")
        } else {
            None
        };
        let braces = block.brace_token.span;
        let body = braces.open().byte_range().end..braces.close().byte_range().start;
        self.0.push(Function { name: sig.ident.to_string(), body, refused });
    }
}

impl<'a> Visit<'a> for Found {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.add(&item.sig, &item.attrs, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add(&item.sig, &item.attrs, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig, &item.attrs, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Whether the type has an `impl Trait` in it: closures and async blocks of two bodies are of two types.
fn returns_hidden(output: &syn::ReturnType) -> bool {
    struct Hidden(bool);
    impl<'a> Visit<'a> for Hidden {
        fn visit_type_impl_trait(&mut self, _: &'a syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut hidden = Hidden(false);
    hidden.visit_return_type(output);
    hidden.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(text: &str) -> Vec<(String, &str, bool)> {
        let all = functions(text).unwrap();
        all.into_iter().map(|f| (f.name, &text[f.body], f.refused.is_none())).collect()
    }

    #[test]
    fn each_kind_of_function_is_found_with_its_body() {
        let text = "//! Braces } in { docs.\nfn free() { 1 }\nimpl A { async fn method(&self) {2} }\n\
            trait T { fn given(&self) { 3 } fn asked(&self); }\nfn out() { fn inner() { 4 } inner() }\n";
        let found = bodies(text);
        let expected = [
            ("free", " 1 "),
            ("method", "2"),
            ("given", " 3 "),
            ("out", " fn inner() { 4 } inner() "),
            ("inner", " 4 "),
        ];
        assert_eq!(found, expected.map(|(name, body)| (name.to_owned(), body, true)));
    }

    #[test]
    fn braces_in_strings_comments_and_wide_letters_do_not_count() {
        let text = "/// Ends with } here.\nfn f() { let s = \"}ä\"; // }\n let c = '}'; let r = r#\"}\"#; /* } */ s }";
        let found = bodies(text);
        assert_eq!(found.len(), 1);
        assert!(found[0].1.starts_with(" let s") && found[0].1.ends_with(" s "), "found {:?}", found[0].1);
    }

    #[test]
    fn what_cannot_choose_at_run_time_is_refused() {
        let text = "const fn c() -> u8 { 1 }\nfn h() -> impl Iterator<Item = u8> { [1].into_iter() }\n\
            fn b() -> Box<dyn Fn() -> u8> { Box::new(|| 1) }\nfn n() -> Option<impl Copy> { None::<u8> }\n\
            fn a() { #![allow(unused)] }\nfn takes(x: impl Copy) { drop(x) }";
        let usable: Vec<bool> = bodies(text).into_iter().map(|(_, _, usable)| usable).collect();
        assert_eq!(usable, [false, false, true, false, false, true]);
    }

    #[test]
    fn a_text_with_open_braces_is_no_body() {
        assert!(is_body(" let a = 1; a // the end"));
        assert!(is_body(""));
        assert!(!is_body(" if a { 1 "));
        assert!(!is_body(" 1 } fn other() { 2 "));
        assert!(!is_body(" let a = ; "));
    }

    #[test]
    fn what_is_no_rust_is_an_error_with_its_place() {
        let error = functions("fn f() {}\nfn (").unwrap_err().to_string();
        assert!(error.starts_with("line 2, column "), "found {error:?}");
    }
}
