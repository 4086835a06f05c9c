use super::*;
use crate::einsum::subscripts::parse;
use crate::shape::error::OpName;
use proptest::prelude::*;

fn parsed(text: &str, shapes: &[&[usize]]) -> Subscripts {
    parse(&OpName::Borrowed("einsum"), text, shapes).unwrap()
}

fn path(text: &str, shapes: &[&[usize]]) -> Path {
    find(&parsed(text, shapes), shapes)
}

fn pairs(path: &Path) -> Vec<(usize, usize)> {
    path.steps.iter().map(|s| (s.lhs, s.rhs)).collect()
}

#[test]
fn one_operand_needs_no_step() {
    let got = path("ij->ji", &[&[2, 3]]);
    assert_eq!(got, Path { steps: vec![], flops: 0, peak_elements: 6 });
}

#[test]
fn a_chain_is_contracted_in_the_cheaper_order() {
    let left = path("ij,jk,kl->il", &[&[2, 30], &[30, 4], &[4, 50]]);
    assert_eq!(pairs(&left), [(0, 1), (3, 2)]);
    assert_eq!((left.flops, left.peak_elements), (2 * (2 * 30 * 4 + 2 * 4 * 50), 100));
    let right = path("ij,jk,kl->il", &[&[50, 4], &[4, 30], &[30, 2]]);
    assert_eq!(pairs(&right), [(1, 2), (0, 3)]);
    assert_eq!(right.steps[1].labels.as_slice(), [0, 3]);
    assert_eq!(pairs(&path("ij,jk,kl->il", &[&[5, 5], &[5, 5], &[5, 5]])), [(0, 1), (3, 2)]);
}

#[test]
fn an_outer_product_is_taken_where_it_is_cheaper() {
    // a and b are short, the matrix is long: multiplying the vectors first costs least.
    let got = path("a,b,abc->c", &[&[2], &[2], &[2, 2, 1000]]);
    assert_eq!(pairs(&got), [(0, 1), (3, 2)]);
    assert_eq!(got.flops, 2 * 4 + 2 * 4000);
    assert_eq!(pairs(&path("i,j->ij", &[&[2], &[3]])), [(0, 1)]);
}

#[test]
fn length_one_axes_have_no_loop() {
    // j is 1 in operand 2 and not in the output, so it is summed in the first step.
    let got = path("ij,jk,jk->ik", &[&[2, 3], &[3, 4], &[1, 4]]);
    assert_eq!(pairs(&got), [(0, 1), (3, 2)]);
    assert_eq!(got.flops, 2 * (2 * 3 * 4) + 2 * (2 * 4));
    let wide = path("ij,jk->ik", &[&[2, 1], &[300, 4]]);
    assert_eq!(wide.flops, 2 * 2 * 4, "j is in one operand only and summed beforehand");
    let empty = path("ij,jk->ik", &[&[2, 0], &[0, 4]]);
    assert_eq!((empty.flops, empty.peak_elements), (0, 8));
}

#[test]
fn what_survives_is_needed_later() {
    assert_eq!(surviving(&[0, 1, 5], &[1, 2, 3], &[&[3], &[4]], &[2, 0]).as_slice(), [0, 2, 3]);
    assert_eq!(surviving(&[0], &[0], &[], &[]).as_slice(), [0u16; 0]);
}

#[test]
fn numbers_saturate() {
    let huge = usize::MAX;
    let got = path("ab,cd,ef->abcdef", &[&[huge, huge], &[huge, huge], &[huge, huge]]);
    assert_eq!((got.flops, got.peak_elements, got.steps.len()), (u128::MAX, u128::MAX, 2));
}

#[test]
fn a_long_chain_and_many_scalars_are_greedy() {
    let letters: Vec<char> = ('a'..='z').collect();
    let text: Vec<String> = letters.windows(2).map(|w| w.iter().collect()).collect();
    let shapes: Vec<Vec<usize>> = (0..25).map(|i| vec![2 + i % 3, 2 + (i + 1) % 3]).collect();
    let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let got = path(&text.join(","), &shapes);
    assert_eq!(got.steps.len(), 24);
    assert!(got.peak_elements <= 16, "{}", got.peak_elements);
    assert_eq!(got.steps[23].labels.as_slice(), [0, 25]);
    let scalars = path(&",".repeat(39), &[&[] as &[usize]; 40]);
    assert_eq!((scalars.steps.len(), scalars.flops), (39, 78));
}

/// The least flops over every order, by trying them all on lists of (label, length).
fn fewest_flops(operands: &[Vec<(u16, usize)>], out: &[u16]) -> u128 {
    let mut least = u128::MAX;
    for j in 1..operands.len() {
        for i in 0..j {
            let rest: Vec<&Vec<(u16, usize)>> = (0..operands.len()).filter(|k| *k != i && *k != j).map(|k| &operands[k]).collect();
            let (cost, result) = product(&operands[i], &operands[j], &rest, out);
            let mut next: Vec<_> = rest.into_iter().cloned().collect();
            next.push(result);
            least = least.min(cost + fewest_flops(&next, out));
        }
    }
    if operands.len() < 2 { 0 } else { least }
}

/// Flops and result of one step; an axis of one operand that nothing else needs is summed beforehand.
fn product(a: &[(u16, usize)], b: &[(u16, usize)], rest: &[&Vec<(u16, usize)>], out: &[u16]) -> (u128, Vec<(u16, usize)>) {
    let long = |list: &[(u16, usize)], l: u16| list.iter().any(|&(k, len)| k == l && len != 1);
    let (mut cost, mut result) = (2, Vec::new());
    for &(l, len) in a.iter().chain(b.iter().filter(|(l, _)| !long(a, *l))).filter(|(_, len)| *len != 1) {
        let later = out.contains(&l) || rest.iter().any(|r| long(r, l));
        if later {
            result.push((l, len));
        }
        if later || (long(a, l) && long(b, l)) {
            cost *= len as u128;
        }
    }
    (cost, result)
}

fn checked(network: &Network, pairs: &[(usize, usize)]) -> Path {
    let n = network.terms.len();
    let mut used = vec![false; n + pairs.len()];
    for (step, &(lhs, rhs)) in pairs.iter().enumerate() {
        assert!(lhs < n + step && rhs < n + step && lhs != rhs && !used[lhs] && !used[rhs]);
        (used[lhs], used[rhs]) = (true, true);
    }
    assert_eq!(pairs.len() + 1, n);
    network.path(pairs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_exact_order_is_the_cheapest(
        axes in prop::collection::vec(prop::collection::btree_map(0u16..6, prop::bool::weighted(0.85), 0..4), 3..=6),
        lens in prop::collection::vec(1usize..9, 6),
        kept in prop::collection::vec(prop::bool::weighted(0.3), 6),
    ) {
        let terms: Vec<Vec<(u16, usize)>> = axes.iter().map(|t| t.iter().map(|(&l, &full)| (l, if full { lens[usize::from(l)] } else { 1 })).collect()).collect();
        let name = |l: u16| char::from(b'a' + l as u8);
        let text: Vec<String> = terms.iter().map(|t| t.iter().map(|&(l, _)| name(l)).collect()).collect();
        let out: String = (0..6u16).filter(|&l| kept[usize::from(l)] && terms.iter().flatten().any(|a| a.0 == l)).map(name).collect();
        let shapes: Vec<Vec<usize>> = terms.iter().map(|t| t.iter().map(|a| a.1).collect()).collect();
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let sub = parsed(&format!("{}->{out}", text.join(",")), &shapes);

        let network = Network::new(&sub, &shapes);
        let n = terms.len();
        let exact = checked(&network, &network.exact());
        let greedy = checked(&network, &network.greedy());
        let left: Vec<(usize, usize)> = (1..n).map(|k| if k == 1 { (0, 1) } else { (n + k - 2, k) }).collect();
        let left = checked(&network, &left);
        prop_assert!(exact.flops <= greedy.flops && exact.flops <= left.flops);
        prop_assert_eq!(&find(&sub, &shapes), &exact);

        let renamed: Vec<Vec<(u16, usize)>> = sub.terms.iter().zip(&shapes).map(|(t, s)| t.iter().copied().zip(s.iter().copied()).collect()).collect();
        prop_assert_eq!(exact.flops, fewest_flops(&renamed, &sub.out));
    }
}
