//! Subscripts such as `"...ij,...jk->...ik"`, parsed and checked against the operands' shapes.

use std::collections::HashMap;

use super::Labels;
use crate::shape::error::{Error, OpName, Result, ShapeFault};

/// The most labels, ellipsis axes included, that one einsum may have.
pub const MAX_LABELS: usize = 60_000;

/// The meaning of a subscript string: labels are numbered, ellipsis axes are labels like any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscripts {
    /// Labels of each operand's axes; a label that repeats within a term is a diagonal.
    pub terms: Vec<Labels>,
    /// Labels of the result's axes, each once.
    pub out: Labels,
    /// Length of each label, by id: what all of its axes broadcast to.
    pub lens: Vec<usize>,
    /// Character of each label, by id; `.` for ellipsis axes.
    pub names: Vec<char>,
}

/// One term as written, before the ellipsis is expanded.
#[derive(Default)]
struct Term {
    labels: Labels,
    /// How many labels stand before the ellipsis.
    ellipsis: Option<usize>,
    /// Column of the first character.
    column: usize,
}

impl Term {
    fn starting_at(column: usize) -> Term {
        Term { column, ..Term::default() }
    }

    /// The labels with the ellipsis replaced by `axes`.
    fn expand(&self, axes: &[u16]) -> Labels {
        let (head, tail) = self.labels.split_at(self.ellipsis.unwrap_or(self.labels.len()));
        let axes = if self.ellipsis.is_some() { axes } else { &[] };
        head.iter().chain(axes).chain(tail).copied().collect()
    }
}

/// The string as written.
struct Written {
    terms: Vec<Term>,
    out: Option<Term>,
    names: Vec<char>,
    /// Column after the last input term.
    inputs_end: usize,
}

/// Parses `text` for operands of the given shapes.
///
/// Takes the explicit form (`ij,jk->ik`) and NumPy's implicit one, whose result has the ellipsis axes and then the
/// labels that occur once, ordered by character. Spaces are skipped wherever they stand. Ellipsis axes align at the
/// right and broadcast. The length of a label is that of its axes, which are equal or 1; those of a label that repeats
/// within a term are equal.
///
/// # Errors
/// [`Error::InvalidArgument`] with the column for malformed text, [`Error::ShapeMismatch`] where the shapes don't fit.
///
/// # Cost
/// Linear in the text and in the total number of axes, and n log n in the labels of an implicit result.
pub fn parse(op: &OpName, text: &str, shapes: &[&[usize]]) -> Result<Subscripts> {
    let written = read(op, text)?;
    let fault = |column: usize, reason: String| malformed(op, text, column, &reason);
    let Written { terms, out, mut names, inputs_end } = written;
    if terms.len() != shapes.len() {
        let column = terms.get(shapes.len()).map_or(inputs_end, |t| t.column);
        let reason = format!("the number of terms is {}, of operands {}; write one term for each operand", terms.len(), shapes.len());
        return Err(fault(column, reason));
    }

    let mut ellipsis_rank = 0;
    for (at, (term, shape)) in terms.iter().zip(shapes).enumerate() {
        let (labels, rank) = (term.labels.len(), shape.len());
        if rank < labels || (rank > labels && term.ellipsis.is_none()) {
            return Err(miscounted(op, shapes, at, term));
        }
        ellipsis_rank = ellipsis_rank.max(rank - labels);
        if names.len() + ellipsis_rank > MAX_LABELS {
            return Err(fault(term.column, too_many()));
        }
    }
    let named = names.len() as u16;
    names.resize(names.len() + ellipsis_rank, '.');
    let axes: Labels = (named..names.len() as u16).collect();

    let out = match out {
        Some(term) if term.ellipsis.is_none() && ellipsis_rank > 0 => {
            let reason = format!("the output has to include the ellipsis, whose rank is {ellipsis_rank}");
            return Err(fault(term.column, reason));
        }
        Some(term) => term.expand(&axes),
        None => implicit_out(&terms, &axes, &names),
    };
    let terms: Vec<Labels> = terms
        .iter()
        .zip(shapes)
        .map(|(term, shape)| {
            let rank = shape.len() - term.labels.len();
            term.expand(&axes[ellipsis_rank - rank..])
        })
        .collect();
    let lens = label_lengths(op, shapes, &terms, &names)?;
    Ok(Subscripts { terms, out, lens, names })
}

fn too_many() -> String {
    format!("more than {MAX_LABELS} labels; use fewer axes")
}

fn malformed(op: &OpName, text: &str, column: usize, reason: &str) -> Error {
    Error::invalid(op.clone(), "subscripts", format!("{text:?}"), format!("column {column}: {reason}"))
}

fn shape_fault(op: &OpName, shapes: &[&[usize]], fault: ShapeFault) -> Error {
    Error::ShapeMismatch { op: op.clone(), shapes: shapes.iter().map(|s| s.to_vec()).collect(), fault }
}

fn miscounted(op: &OpName, shapes: &[&[usize]], at: usize, term: &Term) -> Error {
    let labels = term.labels.len();
    let rank = shapes.get(at).map_or(0, |s| s.len());
    let or_more = if term.ellipsis.is_some() { " or more" } else { "" };
    let want = format!("rank {labels}{or_more} for term {at}, which has {labels} labels, but its operand has rank {rank}");
    let remedy = "write one label for each axis, or '...' for the axes without one";
    shape_fault(op, shapes, ShapeFault::Count { want, remedy })
}

/// Splits the text into terms and numbers the labels by first occurrence.
fn read(op: &OpName, text: &str) -> Result<Written> {
    let fault = |column: usize, reason: String| Err(malformed(op, text, column, &reason));
    let end = text.chars().count() + 1;
    let mut chars = text.chars().zip(1..).filter(|&(c, _)| c != ' ').peekable();
    let mut ids: HashMap<char, u16> = HashMap::new();
    let mut names = Vec::new();
    let mut in_out: Vec<bool> = Vec::new();
    let mut terms = Vec::new();
    let mut arrow = None;
    let mut term = Term::starting_at(1);
    while let Some((c, column)) = chars.next() {
        match c {
            ',' if arrow.is_some() => return fault(column, "a comma after '->'; the output is one term".into()),
            ',' => terms.push(std::mem::replace(&mut term, Term::starting_at(column + 1))),
            '-' => {
                let Some((_, close)) = chars.next_if(|&(c, _)| c == '>') else {
                    return fault(column, "'-' without '>'; the arrow is '->'".into());
                };
                if arrow.is_some() {
                    return fault(column, "a second '->'; write one".into());
                }
                arrow = Some(column);
                in_out = vec![false; names.len()];
                terms.push(std::mem::replace(&mut term, Term::starting_at(close + 1)));
            }
            '.' => {
                let dots = [chars.next_if(|&(c, _)| c == '.'), chars.next_if(|&(c, _)| c == '.')];
                if dots.contains(&None) {
                    return fault(column, "'.' outside of an ellipsis; the ellipsis is '...'".into());
                }
                if term.ellipsis.is_some() {
                    return fault(column, "a second ellipsis in one term; write one".into());
                }
                term.ellipsis = Some(term.labels.len());
            }
            c if c.is_alphabetic() => {
                let known = ids.get(&c).copied();
                let id = match known {
                    Some(id) => id,
                    None if arrow.is_some() => return fault(column, format!("output label {c:?} is in no term")),
                    None if names.len() >= MAX_LABELS => return fault(column, too_many()),
                    None => {
                        let id = names.len() as u16;
                        ids.insert(c, id);
                        names.push(c);
                        id
                    }
                };
                if let Some(seen) = in_out.get_mut(usize::from(id)) {
                    if *seen {
                        return fault(column, format!("output label {c:?} repeats; write it once"));
                    }
                    *seen = true;
                }
                term.labels.push(id);
            }
            _ => return fault(column, format!("character {c:?}; want letters, ',', '...', '->' and spaces")),
        }
    }
    let out = if arrow.is_some() {
        Some(term)
    } else {
        terms.push(term);
        None
    };
    Ok(Written { terms, out, names, inputs_end: arrow.unwrap_or(end) })
}

/// The ellipsis axes, then the labels that occur once over all terms, by character.
fn implicit_out(terms: &[Term], axes: &[u16], names: &[char]) -> Labels {
    let mut counts = vec![0usize; names.len()];
    for &label in terms.iter().flat_map(|t| &t.labels) {
        counts[usize::from(label)] += 1;
    }
    let mut once: Vec<u16> = (0..names.len() as u16).filter(|&l| counts[usize::from(l)] == 1).collect();
    once.sort_unstable_by_key(|&l| names[usize::from(l)]);
    axes.iter().copied().chain(once).collect()
}

/// What the axes of each label broadcast to.
fn label_lengths(op: &OpName, shapes: &[&[usize]], terms: &[Labels], names: &[char]) -> Result<Vec<usize>> {
    let mut lens = vec![1usize; names.len()];
    // The term that gave a label its length, and the last term (with the length there) that held it.
    let mut source = vec![0usize; names.len()];
    let mut latest: Vec<Option<(usize, usize)>> = vec![None; names.len()];
    for (at, (term, shape)) in terms.iter().zip(shapes).enumerate() {
        for (&label, &len) in term.iter().zip(*shape) {
            let id = usize::from(label);
            let fault = |first| shape_fault(op, shapes, ShapeFault::Label { label: names[id], first, second: (at, len) });
            if let Some((holder, other)) = latest[id].replace((at, len))
                && holder == at
                && other != len
            {
                return Err(fault((at, other)));
            }
            if lens[id] == 1 {
                (lens[id], source[id]) = (len, at);
            } else if len != 1 && len != lens[id] {
                return Err(fault((source[id], lens[id])));
            }
        }
    }
    Ok(lens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn try_parse(text: &str, shapes: &[&[usize]]) -> Result<Subscripts> {
        parse(&OpName::Borrowed("einsum"), text, shapes)
    }

    fn named(sub: &Subscripts, labels: &[u16]) -> String {
        labels.iter().map(|&l| sub.names[usize::from(l)]).collect()
    }

    fn out(text: &str, shapes: &[&[usize]]) -> (String, Vec<usize>) {
        let sub = try_parse(text, shapes).unwrap();
        (named(&sub, &sub.out), sub.out.iter().map(|&l| sub.lens[usize::from(l)]).collect())
    }

    fn refusal(text: &str, shapes: &[&[usize]]) -> String {
        try_parse(text, shapes).unwrap_err().to_string()
    }

    #[test]
    fn results_are_those_of_numpy() {
        assert_eq!(out("ij,jk", &[&[2, 3], &[3, 4]]), ("ik".into(), vec![2, 4]));
        assert_eq!(out("ij,jk->ik", &[&[2, 3], &[3, 4]]), ("ik".into(), vec![2, 4]));
        assert_eq!(out(" i j , j k - > k i ", &[&[2, 3], &[3, 4]]), ("ki".into(), vec![4, 2]));
        assert_eq!(out("ii", &[&[3, 3]]), (String::new(), vec![]));
        assert_eq!(out("ii->i", &[&[3, 3]]), ("i".into(), vec![3]));
        assert_eq!(out("ba", &[&[2, 3]]), ("ab".into(), vec![3, 2]));
        assert_eq!(out("bA", &[&[2, 3]]), ("Ab".into(), vec![3, 2]));
        assert_eq!(out("...ij,...jk->...ik", &[&[5, 1, 2, 3], &[7, 3, 4]]), ("..ik".into(), vec![5, 7, 2, 4]));
        assert_eq!(out("...ij,...jk", &[&[2, 3], &[7, 3, 4]]), (".ik".into(), vec![7, 2, 4]));
        assert_eq!(out("i...->...", &[&[2, 3, 4]]), ("..".into(), vec![3, 4]));
        assert_eq!(out("i...->...", &[&[2]]), (String::new(), vec![]));
        assert_eq!(out("b...a", &[&[2, 5, 3]]), (".ab".into(), vec![5, 3, 2]));
        assert_eq!(out("...i->i", &[&[4]]), ("i".into(), vec![4]));
        assert_eq!(out("i->i...", &[&[4]]), ("i".into(), vec![4]));
        assert_eq!(out("", &[&[]]), (String::new(), vec![]));
        assert_eq!(out(",->", &[&[], &[]]), (String::new(), vec![]));
        assert_eq!(out("éß,ß", &[&[2, 3], &[3]]), ("é".into(), vec![2]));
    }

    #[test]
    fn terms_keep_their_labels() {
        let sub = try_parse("i...j,j...->...", &[&[2, 5, 6, 3], &[3, 6]]).unwrap();
        assert_eq!(sub.terms, [Labels::from_slice(&[0, 2, 3, 1]), Labels::from_slice(&[1, 3])]);
        assert_eq!(sub.names, ['i', 'j', '.', '.']);
        assert_eq!(sub.lens, [2, 3, 5, 6]);
    }

    #[test]
    fn lengths_are_equal_or_one() {
        assert_eq!(out("ij,jk->ijk", &[&[2, 1], &[3, 4]]).1, [2, 3, 4]);
        assert_eq!(out("i,i,i->i", &[&[1], &[0], &[1]]).1, [0]);
        let label = |text: &str, shapes: &[&[usize]]| match try_parse(text, shapes) {
            Err(Error::ShapeMismatch { fault: ShapeFault::Label { label, first, second }, .. }) => (label, first, second),
            other => panic!("{other:?}"),
        };
        assert_eq!(label("i,ij,jk", &[&[2], &[2, 3], &[4, 5]]), ('j', (1, 3), (2, 4)));
        assert_eq!(label("i,i,i", &[&[1], &[2], &[3]]), ('i', (1, 2), (2, 3)));
        assert_eq!(label("i,i", &[&[0], &[2]]), ('i', (0, 0), (1, 2)));
        assert_eq!(label("ii", &[&[1, 3]]), ('i', (0, 1), (0, 3)));
        assert_eq!(label("i...,i...", &[&[2, 3], &[2, 4]]), ('.', (0, 3), (1, 4)));
    }

    #[test]
    fn malformed_text_is_named_by_column() {
        let two: &[&[usize]] = &[&[2, 3], &[3, 4]];
        for (text, want) in [
            ("ij,j1->ik", "column 5: character '1'"),
            ("ij,jk\t", "column 6: character '\\t'"),
            ("ij,jk>", "column 6: character '>'"),
            ("i.j,jk", "column 2: '.' outside"),
            ("i....j,jk", "column 5: '.' outside"),
            ("...i...,jk", "column 5: a second ellipsis"),
            ("ij,jk->...i...", "column 12: a second ellipsis"),
            ("ij,jk->i->k", "column 9: a second '->'"),
            ("ij,jk-ik", "column 6: '-' without '>'"),
            ("ij,jk->ik,", "column 10: a comma after"),
            ("ij,jk->iki", "column 10: output label 'i' repeats"),
            ("ij,jk->iz", "column 9: output label 'z' is in no term"),
            ("ij", "column 3: the number of terms is 1, of operands 2"),
            ("ij->i", "column 3: the number of terms is 1, of operands 2"),
            ("ij,jk,kl->il", "column 7: the number of terms is 3, of operands 2"),
            ("...j,jk->k", "column 10: the output has to include the ellipsis"),
        ] {
            let got = refusal(text, two);
            assert!(got.starts_with("einsum: subscripts is \"") && got.contains(want), "{text}: {got}");
        }
        assert!(refusal("", &[]).contains("column 1: the number of terms is 1, of operands 0"));
    }

    #[test]
    fn label_counts_fit_the_ranks() {
        assert!(refusal("ij,jkl", &[&[2, 3], &[3, 4]]).contains("rank 3 for term 1, which has 3 labels, but its operand has rank 2"));
        assert!(refusal("i", &[&[2, 3]]).contains("rank 1 for term 0"));
        assert!(refusal("ij...", &[&[2]]).contains("rank 2 or more for term 0"));
    }

    #[test]
    fn too_many_labels_are_refused() {
        let letters: Vec<char> = ('a'..=char::MAX).filter(|c| c.is_alphabetic()).take(MAX_LABELS + 1).collect();
        let ones = vec![1; MAX_LABELS + 1];
        let text = |n: usize| letters[..n].iter().collect::<String>();
        assert_eq!(try_parse(&text(MAX_LABELS), &[&ones[1..]]).unwrap().out.len(), MAX_LABELS);
        assert!(refusal(&text(MAX_LABELS + 1), &[&ones]).contains("column 60001: more than 60000"));
        assert!(try_parse("...", &[&ones[1..]]).is_ok());
        assert!(refusal("i...", &[&vec![1; MAX_LABELS + 2]]).contains("column 1: more than 60000"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in prop_oneof![".*", "[ij.,> -]{0,12}"], shapes in prop::collection::vec(prop::collection::vec(0usize..4, 0..4), 0..4)) {
            let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
            if let Ok(sub) = try_parse(&text, &shapes) {
                prop_assert_eq!(sub.terms.len(), shapes.len());
                for (term, shape) in sub.terms.iter().zip(&shapes) {
                    prop_assert_eq!(term.len(), shape.len());
                    for (&label, &len) in term.iter().zip(*shape) {
                        prop_assert!(len == 1 || len == sub.lens[usize::from(label)]);
                    }
                }
            }
        }
    }
}
