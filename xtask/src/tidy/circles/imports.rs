//! What one file of Rust says about modules, as text: which it declares, what it defines, and the paths that it uses.

use std::collections::BTreeSet;

/// A path in a file.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Used {
    /// From the crate's root, with the modules of the file itself resolved: `crate`, `self` and `super` are gone.
    pub path: Vec<String>,
    /// `as NAME`, else the last part; `*` for all names.
    pub name: String,
    /// Whether it stands in a `use`.
    pub import: bool,
    /// Whether that `use` is `pub`, for whomever.
    pub again: bool,
}

/// What one file says.
#[derive(Debug, Default)]
pub(super) struct File {
    /// Modules that are declared for tests only: `#[cfg(test)] mod x;`.
    pub for_tests: BTreeSet<String>,
    /// Names of items that are defined at the top of the file.
    pub defined: BTreeSet<String>,
    /// Names that it imports from other crates.
    pub foreign: BTreeSet<String>,
    pub used: Vec<Used>,
}

/// Words that begin an item.
const ITEMS: [&str; 10] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "mod", "macro_rules"];

/// Reads a file, whose own path from the crate's root is `module`.
pub(super) fn read(text: &str, module: &[String]) -> File {
    let code = blanked(text);
    let mut reader = Reader {
        tokens: tokens(&code),
        at: 0,
        depth: 0,
        module,
        inside: Vec::new(),
        children: BTreeSet::new(),
        file: File::default(),
    };
    reader.children = reader.declared();
    reader.run();
    reader.file
}

/// The text without comments, strings and characters: a blank is in the place of each.
fn blanked(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let c = at(i);
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            while i < chars.len() {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 {
                    break;
                }
            }
            out.push(' ');
        } else if c == '"' {
            i += 1;
            while i < chars.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
            out.push(' ');
        } else if c == 'r' && matches!(at(i + 1), '"' | '#') && (i == 0 || !word(at(i - 1)) || at(i - 1) == 'b') {
            let hashes = (i + 1..).take_while(|n| at(*n) == '#').count();
            if at(i + 1 + hashes) == '"' {
                i += 2 + hashes;
                while i < chars.len() && !(at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#')) {
                    i += 1;
                }
                i += 1 + hashes;
                out.push(' ');
            } else {
                // `r#name`.
                i += 1 + hashes;
            }
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && at(i) != '\'' {
                i += 1;
            }
            i += 1;
            out.push(' ');
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

fn word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words, `::`, and every other sign by itself.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return found };
        let end = if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
}

struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    depth: usize,
    module: &'a [String],
    /// Modules within the file that are open, each with the depth of braces before it.
    inside: Vec<(String, usize)>,
    children: BTreeSet<String>,
    file: File,
}

impl<'a> Reader<'a> {
    fn token(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).copied().unwrap_or_default()
    }

    fn back(&self, by: usize) -> &'a str {
        self.at.checked_sub(by).and_then(|at| self.tokens.get(at)).copied().unwrap_or_default()
    }

    /// `mod NAME` anywhere in the file.
    fn declared(&self) -> BTreeSet<String> {
        let pairs = self.tokens.windows(2).filter(|w| w[0] == "mod" && w[1].starts_with(word));
        pairs.map(|w| w[1].to_owned()).collect()
    }

    fn run(&mut self) {
        while self.at < self.tokens.len() {
            match self.token(0) {
                "#" if self.tokens[self.at..].starts_with(&["#", "[", "cfg", "(", "test", ")", "]"]) => {
                    self.skip_item();
                    continue;
                }
                "{" => self.depth += 1,
                "}" => {
                    self.depth = self.depth.saturating_sub(1);
                    self.inside.pop_if(|(_, depth)| *depth == self.depth);
                }
                "use" => {
                    self.import();
                    continue;
                }
                // `'static` is a lifetime.
                item if ITEMS.contains(&item) && self.back(1) != "'" => {
                    let name = self.token(if item == "macro_rules" { 2 } else { 1 });
                    if self.depth == 0 && item != "mod" && !matches!(name, "fn" | "_" | "mut") {
                        self.file.defined.insert(name.to_owned());
                    }
                    if item == "mod" && self.token(2) == "{" {
                        self.inside.push((name.to_owned(), self.depth));
                    }
                }
                "crate" | "self" | "super" if self.token(1) == "::" && self.back(1) != "::" => {
                    self.path();
                    continue;
                }
                child if self.children.contains(child) && self.token(1) == "::" && self.back(1) != "::" => {
                    self.path();
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Passes over `#[cfg(test)]` and what it stands before.
    fn skip_item(&mut self) {
        self.at += 7;
        while self.token(0) == "#" {
            self.over_brackets();
        }
        let mut words = (0..5).map(|n| self.token(n));
        if let Some(at) = words.position(|w| w == "mod")
            && self.token(at + 2) == ";"
        {
            self.file.for_tests.insert(self.token(at + 1).to_owned());
        }
        // A field or a variant ends with a comma; the commas of an item are those of its generics.
        let item = (0..7).any(|n| ITEMS.contains(&self.token(n)) || matches!(self.token(n), "use" | "impl"));
        let mut open = 0usize;
        while self.at < self.tokens.len() {
            match self.token(0) {
                "{" | "(" | "[" => open += 1,
                "}" | ")" | "]" if open == 0 => return,
                ")" | "]" => open -= 1,
                "}" => {
                    open -= 1;
                    if open == 0 {
                        self.at += 1;
                        return;
                    }
                }
                end if open == 0 && (end == ";" || end == "," && !item) => {
                    self.at += 1;
                    return;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Passes over `#[...]`.
    fn over_brackets(&mut self) {
        let mut open = 0usize;
        loop {
            match self.token(0) {
                "[" => open += 1,
                "]" => open = open.saturating_sub(1),
                "" => return,
                _ => {}
            }
            self.at += 1;
            if open == 0 && self.back(1) == "]" {
                return;
            }
        }
    }

    /// A path in code.
    fn path(&mut self) {
        let mut path = vec![self.token(0).to_owned()];
        self.at += 1;
        while self.token(0) == "::" && self.token(1).starts_with(word) {
            path.push(self.token(1).to_owned());
            self.at += 2;
        }
        self.note(&path, None, false, false);
    }

    /// `use TREE;`. `use<'a>` of a type is none.
    fn import(&mut self) {
        // `pub use`, `pub(crate) use`, `pub(in a::b) use`.
        let again = matches!(self.back(1), "pub" | ")");
        self.at += 1;
        if self.token(0) != "<" {
            self.tree(&[], again);
        }
    }

    fn tree(&mut self, before: &[String], again: bool) {
        let mut path = before.to_vec();
        loop {
            match self.token(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.token(0), "}" | "") {
                        self.tree(&path, again);
                        if self.token(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "::" => self.at += 1,
                "*" => {
                    self.at += 1;
                    self.note(&path, Some("*"), true, again);
                    return;
                }
                "as" => {
                    let name = self.token(1);
                    self.at += 2;
                    self.note(&path, Some(name), true, again);
                    return;
                }
                // `{self, ...}` names what is before it.
                "self" if !before.is_empty() && path.len() == before.len() => self.at += 1,
                part if part.starts_with(word) => {
                    path.push(part.to_owned());
                    self.at += 1;
                }
                _ => {
                    self.note(&path, None, true, again);
                    return;
                }
            }
        }
    }

    /// Notes a path. Of those that lead out of the crate only imports, by their name.
    fn note(&mut self, path: &[String], name: Option<&str>, import: bool, again: bool) {
        let here: Vec<String> = self.module.iter().chain(self.inside.iter().map(|(name, _)| name)).cloned().collect();
        let ups = path.iter().take_while(|p| *p == "super").count();
        let name = name.or(path.last().map(String::as_str)).unwrap_or_default().to_owned();
        let (base, rest) = match path.first().map(String::as_str) {
            Some("crate") => (0, &path[1..]),
            Some("self") => (here.len(), &path[1..]),
            Some("super") => (here.len().saturating_sub(ups), &path[ups..]),
            Some(child) if self.children.contains(child) => (here.len(), path),
            _ => {
                self.file.foreign.insert(name);
                return;
            }
        };
        let path = [&here[..base], rest].concat();
        self.file.used.push(Used { path, name, import, again });
    }
}
