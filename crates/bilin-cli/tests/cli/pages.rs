//! The commands that the pages show do what they say.

use std::fs;
use std::path::Path;

use crate::program::Folder;

/// Words of a command line, single quotes honoured.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|w| !w.is_empty());
    words
}

/// Commands of a page: lines of `sh` fences and spans of text. One with an ellipsis or a placeholder in capitals is a pattern.
fn commands(page: &str) -> Vec<String> {
    let lines = page.lines().filter(|l| l.starts_with("bilin ")).map(|l| l.split("  #").next().unwrap_or(l).trim());
    let spans = page.split('`').skip(1).step_by(2).filter(|s| s.starts_with("bilin ") && !s.contains('\n'));
    let is_whole = |s: &&str| !s.contains('…') && !words(s).iter().any(|w| w.len() > 1 && w.chars().all(|c| c.is_ascii_uppercase()));
    lines.chain(spans).filter(is_whole).map(str::to_owned).collect()
}

#[test]
fn commands_of_the_pages_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages: Vec<_> = fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path()).collect();
    pages.push(root.join("README.md"));
    let mut ran = 0;
    for page in pages.iter().filter(|p| p.extension().is_some_and(|e| e == "md")) {
        let folder = Folder::new();
        folder.put("A.npy", &[0.5f32; 24], &[2, 3, 4]);
        folder.put("B.npy", &[0.25f32; 40], &[2, 4, 5]);
        fs::create_dir_all(folder.path().join("docs/pictures")).unwrap();
        fs::copy(root.join("docs/pictures/trace.json"), folder.path().join("docs/pictures/trace.json")).unwrap();
        for command in commands(&fs::read_to_string(page).unwrap()) {
            let words = words(&command);
            let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
            // What takes minutes, or a GPU, is tested where it belongs; a name alone is no call.
            let is_named = words.len() == 1 && !words[0].starts_with('-') && words[0] != "ops";
            let run = if is_named || matches!(words[0], "check" | "bench") || words.contains(&"wgpu") {
                folder.run(&[words[0], "--help"])
            } else {
                folder.run(&words)
            };
            assert_eq!(run.status, 0, "{}: {command}: {run:?}", page.display());
            ran += 1;
        }
    }
    assert!(ran >= 8, "{ran} commands");
}
