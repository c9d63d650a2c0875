//! HTML that is written piece by piece. Markup of this program is a `&'static str` and is not escaped. Every other text
//! is escaped (WEB-H1).

/// Elements that end a line, so that people can read the source.
const LINES: [&str; 11] = ["article", "dd", "div", "h2", "h3", "li", "p", "section", "td", "th", "tr"];

/// A piece of HTML.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup of this program.
    pub(super) fn markup(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Text between tags, or in a quoted attribute.
    pub(super) fn text(&mut self, text: &str) {
        for char in text.chars() {
            match char {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                hidden if is_hidden(hidden) => self.0.push('\u{fffd}'),
                other => self.0.push(other),
            }
        }
    }

    /// An element with its content. `open` is its name, and attributes of this program after it.
    pub(super) fn within(&mut self, open: &'static str, content: impl FnOnce(&mut Self)) {
        self.with(open, &[], content);
    }

    /// Like `within`, with attributes whose values are escaped.
    pub(super) fn with(
        &mut self,
        open: &'static str,
        attributes: &[(&'static str, &str)],
        content: impl FnOnce(&mut Self),
    ) {
        let name = open.split(' ').next().unwrap_or(open);
        self.void(open, attributes);
        content(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
        if LINES.contains(&name) {
            self.0.push('\n');
        }
    }

    /// An element that has no end, such as `input`.
    pub(super) fn void(&mut self, open: &'static str, attributes: &[(&'static str, &str)]) {
        self.0.push('<');
        self.0.push_str(open);
        for (attribute, value) in attributes {
            self.0.push(' ');
            self.0.push_str(attribute);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
    }

    /// An element with a text and nothing else.
    pub(super) fn line(&mut self, open: &'static str, text: &str) {
        self.within(open, |html| html.text(text));
    }

    /// The whole.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Control characters, and those that turn the direction of the text around them: what is read would not be what is
/// there.
fn is_hidden(char: char) -> bool {
    let turns = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || char.is_control() && char != '\n'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h1_text_and_values_of_attributes_cannot_become_markup() {
        let mut html = Html::default();
        let evil = "<script>&\"'\u{0}\u{202e}\u{61c}";
        html.with("b class=\"x\"", &[("title", evil)], |html| html.text(evil));
        let escaped = "&lt;script&gt;&amp;&quot;&#39;\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(html.finish(), format!("<b class=\"x\" title=\"{escaped}\">{escaped}</b>"));
    }

    #[test]
    fn elements_are_closed_by_their_name_and_lines_end() {
        let mut html = Html::default();
        html.within("p class=\"quiet\"", |html| {
            html.text("a ");
            html.line("b", "c");
            html.void("br", &[("title", "\"")]);
        });
        assert_eq!(html.finish(), "<p class=\"quiet\">a <b>c</b><br title=\"&quot;\"></p>\n");
    }
}
