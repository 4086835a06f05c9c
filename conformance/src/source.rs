//! Reading Rust source by tokens: paths between modules, words, file names.

use std::path::{Path, PathBuf};

/// The text without comments, strings and characters; each is replaced by a space, line ends stay.
pub fn code_of(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let at = |i: usize| bytes.get(i).copied().unwrap_or('\0');
    let mut i = 0;
    let blank = |out: &mut String, from: usize, to: usize| out.extend(bytes[from..to].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    while i < bytes.len() {
        let start = i;
        let raw_hashes =
            (at(i) == 'r' && !is_word(i.checked_sub(1).map_or(' ', at))).then(|| (i + 1..).take_while(|&j| at(j) == '#').count());
        if at(i) == '/' && at(i + 1) == '/' {
            while i < bytes.len() && at(i) != '\n' {
                i += 1;
            }
        } else if at(i) == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                if at(i) == '/' && at(i + 1) == '*' {
                    depth += 1;
                    i += 2;
                } else if at(i) == '*' && at(i + 1) == '/' {
                    depth -= 1;
                    i += 2;
                } else {
                    i += 1;
                }
                if depth == 0 || i >= bytes.len() {
                    break;
                }
            }
            i = i.min(bytes.len());
        } else if let Some(hashes) = raw_hashes.filter(|h| at(i + 1 + h) == '"') {
            i += hashes + 2;
            while i < bytes.len() && !(at(i) == '"' && (1..=hashes).all(|h| at(i + h) == '#')) {
                i += 1;
            }
            i = (i + hashes + 1).min(bytes.len());
        } else if at(i) == '"' {
            i += 1;
            while i < bytes.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i = (i + 1).min(bytes.len());
        } else if at(i) == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            i += if at(i + 1) == '\\' { 2 } else { 1 };
            while i < bytes.len() && at(i) != '\'' {
                i += 1;
            }
            i = (i + 1).min(bytes.len());
        } else {
            out.push(at(i));
            i += 1;
            continue;
        }
        blank(&mut out, start, i);
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words of code, and the signs between them one by one.
pub fn tokens(code: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut joins = false;
    for c in code.chars() {
        match (is_word(c), out.last_mut()) {
            (true, Some(last)) if joins => last.push(c),
            _ if c.is_whitespace() => {}
            _ => out.push(c.to_string()),
        }
        joins = is_word(c);
    }
    out
}

/// What the paths of a file at `module` (such as `["ops", "einsum"]`) name right below the crate's root, by `crate::` or
/// by `super::`s that lead there, groups in braces included.
pub fn root_names(code: &str, module: &[String]) -> Vec<String> {
    let tokens = tokens(code);
    let is = |i: usize, s: &str| tokens.get(i).is_some_and(|t| t == s);
    let colons = |i: usize| is(i, ":") && is(i + 1, ":");
    let mut out = Vec::new();
    for i in 0..tokens.len() {
        let starts = i == 0 || !is(i - 1, ":");
        let mut after = i;
        if starts && is(i, "crate") && colons(i + 1) {
            after = i + 3;
        } else if starts && is(i, "super") {
            let mut ups = 0;
            while is(after, "super") && colons(after + 1) {
                ups += 1;
                after += 3;
            }
            if ups < module.len() {
                continue;
            }
        } else {
            continue;
        }
        if !is(after, "{") {
            out.extend(tokens.get(after).cloned());
            continue;
        }
        // The first word of each item of the group.
        let (mut depth, mut expects) = (0, false);
        for token in &tokens[after..] {
            match token.as_str() {
                "{" => {
                    depth += 1;
                    expects = depth == 1;
                }
                "}" => depth -= 1,
                "," => expects = depth == 1,
                word if expects => {
                    out.push(word.to_owned());
                    expects = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    out
}

/// The module of a file below `src`: its folders and its stem, `mod` and `lib` left out.
pub fn module_of(relative: &Path) -> Vec<String> {
    let mut parts: Vec<String> = relative.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|p| p == "mod" || p == "lib") {
        parts.pop();
    }
    parts
}

/// Names that the root re-exports, each with the first segment of the path it comes from: `pub use a::b::{C, D as E};`.
pub fn re_exports(code: &str) -> Vec<(String, String)> {
    let tokens = tokens(code);
    let mut out = Vec::new();
    for (i, _) in tokens.windows(2).enumerate().filter(|(_, w)| w[0] == "pub" && w[1] == "use") {
        let statement: Vec<&str> = tokens[i + 2..].iter().map(String::as_str).take_while(|t| *t != ";").collect();
        let Some(first) = statement.first() else { continue };
        for (at, word) in statement.iter().enumerate() {
            let ends = matches!(statement.get(at + 1), None | Some(&"," | &"}"));
            if ends && word.chars().all(is_word) {
                out.push(((*word).to_owned(), (*first).to_owned()));
            }
        }
    }
    out
}

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent").to_owned()
}

/// Files of the workspace, relative to it; build outputs and hidden folders left out.
pub fn files() -> Vec<PathBuf> {
    fn walk(dir: &Path, root: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') || matches!(name.as_str(), "target" | "node_modules") {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, out);
            } else {
                out.push(path.strip_prefix(root).expect("below the root").to_owned());
            }
        }
    }
    let (root, mut out) = (workspace(), Vec::new());
    walk(&root, &root, &mut out);
    out.sort();
    out
}

/// The text of a file of the workspace.
pub fn read(relative: &Path) -> String {
    std::fs::read_to_string(workspace().join(relative)).unwrap_or_else(|e| panic!("{}: {e}", relative.display()))
}
