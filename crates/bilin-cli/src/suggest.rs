//! The nearest known word to a mistyped one.

/// Longer words than this are nobody's typing error.
const MAX_LEN: usize = 40;

/// The known word that the fewest edits lead to, if they are few enough: one for every three letters, at least one.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(MAX_LEN + 1).collect();
    if word.len() > MAX_LEN {
        return None;
    }
    let most = (word.len() / 3).max(1);
    let scored = known.into_iter().map(|k| (distance(&word, &k.chars().collect::<Vec<_>>()), k));
    scored.filter(|(d, _)| *d <= most).min_by_key(|(d, _)| *d).map(|(_, k)| k)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["matmul", "matvec", "vecmat", "dot", "ops"];
        assert_eq!(nearest("matmull", known), Some("matmul"));
        assert_eq!(nearest("mtamul", known), Some("matmul"));
        assert_eq!(nearest("dto", known), Some("dot"));
        assert_eq!(nearest("fourier", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest(&"m".repeat(1000), known), None);
    }
}
