//! Random plans, layouts and subscripts against brute force.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::{BTreeMap, HashSet};

use bilin::{Index, Rng, Tensor, c128, einsum};
use bilin_core::shape::layout::{Dims, Layout, Strides};
use bilin_core::shape::plan::{Loop, Loops, Plan, fuse, position, steps};
use bilin_core::shape::spec::{Axes, Axis, Spec};
use conformance::compare::{C, is_close, numbers};
use conformance::subject::{device, widest_float};
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};
use proptest::test_runner::Config;

/// Failing cases are printed, not kept in files.
fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// Loops of two operands, of which some fit together by chance and some by design.
fn loops() -> impl Strategy<Value = Vec<Loop<2>>> {
    let one = (1usize..5, -3isize..4, -3isize..4, any::<[bool; 2]>());
    prop::collection::vec(one, 0..5).prop_map(|parts| {
        let mut out: Vec<Loop<2>> = Vec::new();
        // From the innermost outwards, so that an outer loop may continue the inner one.
        for (len, a, b, fits) in parts {
            let free = [a, b];
            let strides = std::array::from_fn(|i| match out.last() {
                Some(inner) if fits[i] => inner.strides[i] * inner.len as isize,
                _ => free[i],
            });
            out.push(Loop { len, strides });
        }
        out.reverse();
        out
    })
}

fn offsets(loops: &[Loop<2>]) -> Vec<[isize; 2]> {
    (0..steps(loops)).map(|i| position(loops, i)).collect()
}

proptest! {
    #![proptest_config(config(2000))]

    /// Fused loops visit the same offsets in the same order, and no two neighbours are left whose strides multiply in all
    /// operands.
    #[test]
    fn fusing_keeps_the_order_and_joins_all_that_fit(plain in loops()) {
        let mut fused: Loops<2> = plain.iter().copied().collect();
        fuse(&mut fused);
        prop_assert_eq!(offsets(&fused), offsets(&plain));
        prop_assert!(fused.iter().all(|l| l.len != 1));
        for w in fused.windows(2) {
            let fits = (0..2).all(|i| w[0].strides[i] == w[1].strides[i] * w[1].len as isize);
            prop_assert!(!fits, "{:?} could be one loop", w);
        }
        // As many loops as there are breaks between neighbours, plus one.
        let real: Vec<&Loop<2>> = plain.iter().filter(|l| l.len != 1).collect();
        let breaks = real.windows(2).filter(|w| (0..2).any(|i| w[0].strides[i] != w[1].strides[i] * w[1].len as isize)).count();
        prop_assert_eq!(fused.len(), if real.is_empty() { 0 } else { breaks + 1 });
    }
}

/// A layout of `shape` whose strides are random; not empty, every element inside its span.
fn layout_of(shape: &[usize], strides: &[isize]) -> Layout {
    let low: isize = shape.iter().zip(strides).map(|(&l, &s)| (s * (l.max(1) as isize - 1)).min(0)).sum();
    Layout::from_parts(&"test".into(), Dims::from_slice(shape), Strides::from_slice(strides), (-low) as usize).unwrap()
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &len in shape {
        all = all.into_iter().flat_map(|head| (0..len).map(move |i| [head.clone(), vec![i]].concat())).collect();
    }
    all
}

fn element(layout: &Layout, index: &[usize]) -> usize {
    let moved: isize = index.iter().zip(layout.strides()).map(|(&i, &s)| i as isize * s).sum();
    (layout.offset() as isize + moved) as usize
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn a_view_said_not_to_overlap_itself_does_not(parts in prop::collection::vec((0usize..5, -9isize..10), 0..4)) {
        let (shape, strides): (Vec<usize>, Vec<isize>) = parts.into_iter().unzip();
        let layout = layout_of(&shape, &strides);
        let places: Vec<usize> = indices(&shape).iter().map(|i| element(&layout, i)).collect();
        let distinct: HashSet<usize> = places.iter().copied().collect();
        if !layout.may_self_overlap() {
            prop_assert_eq!(distinct.len(), places.len());
        }
        match layout.span() {
            Some((low, high)) => {
                prop_assert_eq!((places.iter().min(), places.iter().max()), (Some(&low), Some(&high)));
                prop_assert!(layout.fits(high + 1) && !layout.fits(high));
            }
            None => prop_assert!(places.is_empty()),
        }
        if layout.is_contiguous() {
            prop_assert!(places.iter().enumerate().all(|(i, &p)| p == layout.offset() + i));
        }
    }

    /// A reshape by strides alone holds the elements in the same order, and one is found wherever the row-major strides
    /// of the new shape, cut at the old axes, could say it.
    #[test]
    fn a_reshaped_view_equals_a_reshaped_copy(lens in prop::collection::vec(1usize..4, 1..5), cuts in any::<[bool; 8]>(), order in any::<u64>(), flips in any::<[bool; 4]>(), step in 1usize..3) {
        let device = device();
        let room: Vec<usize> = lens.iter().map(|l| l * step).collect();
        let count: usize = room.iter().product();
        let x = Tensor::from_vec((0..count as i64).collect::<Vec<_>>(), &room, &device).unwrap();
        let mut x = x.index(&vec![Index::Slice { start: None, stop: None, step: step as isize }; lens.len()]).unwrap();
        let axes: Vec<isize> = Rng::new(order).permutation(lens.len()).into_iter().map(|a| a as isize).collect();
        if order.is_multiple_of(2) {
            x = x.permute(&axes).unwrap();
        }
        for (axis, flip) in flips.iter().enumerate().take(x.rank()) {
            if *flip && order.is_multiple_of(3) {
                x = x.flip(axis as isize).unwrap();
            }
        }
        // Another factorisation of the number of elements: prime factors of the lengths, joined between cuts.
        let mut shape = vec![1usize];
        for (len, cut) in x.shape().iter().zip(cuts) {
            if cut { shape.push(*len) } else { *shape.last_mut().unwrap() *= len }
        }
        let got = x.reshape(&shape).unwrap();
        let want = x.copy().unwrap().reshape(&shape).unwrap();
        prop_assert_eq!(got.to_vec::<i64>().unwrap(), want.to_vec::<i64>().unwrap());
        if let Some(view) = x.layout().reshape(&shape) {
            let places = |l: &Layout| indices(l.shape()).iter().map(|i| element(l, i)).collect::<Vec<_>>();
            prop_assert_eq!(places(&view), places(x.layout()));
        }
        // Splitting an axis never needs a copy.
        let split: Vec<usize> = x.shape().iter().flat_map(|&l| [1, l, 1]).collect();
        prop_assert!(x.layout().reshape(&split).is_some());
    }
}

/// A spec by the role of each label and orders of the axes; lengths by label.
#[derive(Debug, Clone)]
struct Case {
    roles: Vec<(u8, usize)>,
    units: [bool; 3],
    orders: u64,
    steps: [isize; 3],
}

fn case() -> impl Strategy<Value = Case> {
    let roles = prop::collection::vec((0u8..4, 0usize..4), 0..6);
    (roles, any::<[bool; 3]>(), any::<u64>(), prop::array::uniform3(-2isize..3)).prop_map(|(roles, units, orders, steps)| Case {
        roles,
        units,
        orders,
        steps,
    })
}

/// Axes of one operand in a random order, and its lengths.
fn axes_of(case: &Case, which: usize, rng: &mut Rng) -> (Vec<Axis>, Vec<usize>) {
    // Batch, m, n, k: in which lists a label of that role stands.
    let stands = [[true, true, true], [true, false, true], [false, true, true], [true, true, false]];
    let mut list: Vec<(Axis, usize)> = (0..case.roles.len())
        .filter(|&l| stands[usize::from(case.roles[l].0)][which])
        .map(|l| (Axis::Label(l as u16), case.roles[l].1))
        .collect();
    if case.units[which] {
        list.push((Axis::Unit, 1));
    }
    rng.permutation(list.len()).into_iter().map(|i| list[i]).unzip()
}

/// Strides for a row-major order of randomly permuted axes, `step` apart; step 0 repeats one element for operands.
fn strided(shape: &[usize], step: isize, rng: &mut Rng) -> Layout {
    let mut strides = vec![0isize; shape.len()];
    let mut next = step;
    for axis in rng.permutation(shape.len()) {
        strides[axis] = next;
        next *= shape[axis].max(1) as isize;
    }
    layout_of(shape, &strides)
}

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn a_plan_adds_exactly_the_products_that_the_spec_names(case in case()) {
        let mut rng = Rng::new(case.orders);
        let lists: Vec<(Vec<Axis>, Vec<usize>)> = (0..3).map(|i| axes_of(&case, i, &mut rng)).collect();
        let axes = |i: usize| Axes::from_slice(&lists[i].0);
        let spec = Spec::new(axes(0), axes(1), axes(2)).unwrap();
        let out_step = if case.steps[2] == 0 { 1 } else { case.steps[2] };
        let layouts = [strided(&lists[0].1, case.steps[0], &mut rng), strided(&lists[1].1, case.steps[1], &mut rng), strided(&lists[2].1, out_step, &mut rng)];
        let out_shape = spec.out_shape(&lists[0].1, &lists[1].1);
        prop_assert_eq!(out_shape.as_slice(), lists[2].1.as_slice());
        let plan = Plan::new(&"test".into(), &spec, &layouts[0], &layouts[1], &layouts[2]).unwrap();

        let lens: Vec<usize> = case.roles.iter().map(|r| r.1).collect();
        let place = |which: usize, index: &[usize]| {
            let own: Vec<usize> = lists[which].0.iter().map(|a| match a { Axis::Label(l) => index[usize::from(*l)], Axis::Unit => 0 }).collect();
            element(&layouts[which], &own)
        };
        // For each place of the result the pairs of places that are multiplied, in the order of lhs's summed labels.
        let mut want: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        let free: Vec<usize> = (0..lens.len()).filter(|&l| case.roles[l].0 != 3).collect();
        let summed: Vec<usize> = lists[0].0.iter().filter_map(|a| match a { Axis::Label(l) if case.roles[usize::from(*l)].0 == 3 => Some(usize::from(*l)), _ => None }).collect();
        let sub = |labels: &[usize]| indices(&labels.iter().map(|&l| lens[l]).collect::<Vec<_>>());
        for f in sub(&free) {
            let mut index = vec![0; lens.len()];
            free.iter().zip(&f).for_each(|(&l, &i)| index[l] = i);
            let mut terms = Vec::new();
            let at = place(2, &index);
            for s in sub(&summed) {
                summed.iter().zip(&s).for_each(|(&l, &i)| index[l] = i);
                terms.push((place(0, &index), place(1, &index)));
            }
            prop_assert!(want.insert(at, terms).is_none(), "the result overlaps itself");
        }
        let mut got: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        let [batch, m, n, k] = plan.sizes();
        let base = plan.offsets().map(|o| o as isize);
        for b in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    let at: [isize; 3] = std::array::from_fn(|x| base[x] + position(plan.batch(), b)[x] + position(plan.m(), i)[x] + position(plan.n(), j)[x]);
                    let terms = (0..k).map(|t| position(plan.k(), t)).map(|p| ((at[0] + p[0]) as usize, (at[1] + p[1]) as usize)).collect();
                    prop_assert!(got.insert(at[2] as usize, terms).is_none(), "one place of the result twice");
                    prop_assert!(k == 0 || (0..3).all(|x| (at[x] as usize) < plan.need()[x]));
                }
            }
        }
        prop_assert_eq!(got, want);
    }

    /// The gradients' specs swap roles: what was summed is kept, and the other way round.
    #[test]
    fn rotated_specs_are_specs(case in case()) {
        let mut rng = Rng::new(case.orders);
        let lists: Vec<(Vec<Axis>, Vec<usize>)> = (0..3).map(|i| axes_of(&case, i, &mut rng)).collect();
        let axes = |i: usize| Axes::from_slice(&lists[i].0);
        let spec = Spec::new(axes(0), axes(1), axes(2)).unwrap();
        for (rotated, which) in [(spec.for_lhs_grad(), [2, 1, 0]), (spec.for_rhs_grad(), [0, 2, 1])] {
            prop_assert_eq!(&Spec::new(axes(which[0]), axes(which[1]), axes(which[2])), &Some(rotated.clone()));
            let shape = rotated.out_shape(&lists[which[0]].1, &lists[which[1]].1);
            prop_assert_eq!(shape.as_slice(), lists[which[2]].1.as_slice());
        }
    }
}

/// Terms over few labels, with repeats and length-1 axes; the result's labels.
#[derive(Debug, Clone)]
struct Product {
    lens: Vec<usize>,
    terms: Vec<Vec<(usize, bool)>>,
    picked: Vec<bool>,
    order: u64,
    seed: u64,
}

fn product() -> impl Strategy<Value = Product> {
    let lens = prop::collection::vec(0usize..4, 5);
    let term = prop::collection::vec((0usize..5, any::<bool>()), 0..4);
    (lens, prop::collection::vec(term, 1..4), prop::collection::vec(any::<bool>(), 5), any::<u64>(), any::<u64>())
        .prop_map(|(lens, terms, picked, order, seed)| Product { lens, terms, picked, order, seed })
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn einsum_equals_a_naive_loop(p in product()) {
        let mut rng = Rng::new(p.seed);
        // A length-1 axis broadcasts; axes of one label in one term are alike.
        let shapes: Vec<Vec<usize>> = p.terms.iter().map(|t| t.iter().map(|&(l, unit)| if unit && t.iter().filter(|x| x.0 == l).count() == 1 { 1 } else { p.lens[l] }).collect()).collect();
        let used: Vec<usize> = (0..5).filter(|l| p.terms.iter().flatten().any(|x| x.0 == *l)).collect();
        // A label is as long as its longest axis.
        let mut lens = [1usize; 5];
        for (t, s) in p.terms.iter().zip(&shapes) {
            for (&(l, _), &len) in t.iter().zip(s) {
                if len != 1 { lens[l] = len }
            }
        }
        let kept: Vec<usize> = used.iter().copied().filter(|&l| p.picked[l]).collect();
        let out: Vec<usize> = Rng::new(p.order).permutation(kept.len()).into_iter().map(|i| kept[i]).collect();
        let letter = |l: usize| char::from(b'a' + l as u8);
        let names: Vec<String> = p.terms.iter().map(|t| t.iter().map(|x| letter(x.0)).collect()).collect();
        let text = format!("{}->{}", names.join(","), out.iter().map(|&l| letter(l)).collect::<String>());
        let operands: Vec<Tensor> = shapes.iter().map(|s| Tensor::randn(s, widest_float(), &device(), &mut rng).unwrap()).collect();
        let got = einsum(&text, &operands.iter().collect::<Vec<_>>()).unwrap();
        prop_assert_eq!(got.shape(), out.iter().map(|&l| lens[l]).collect::<Vec<_>>());

        let data: Vec<Vec<f64>> = operands.iter().map(|t| numbers(t).iter().map(|z| z.re).collect()).collect();
        let mut sums: BTreeMap<Vec<usize>, (f64, f64)> = indices(got.shape()).into_iter().map(|i| (i, (0.0, 0.0))).collect();
        let all: Vec<usize> = used.iter().map(|&l| lens[l]).collect();
        let count: usize = all.iter().product();
        for i in indices(&all) {
            let at = |l: usize| i[used.iter().position(|u| *u == l).unwrap()];
            let mut x = 1.0;
            for (t, (shape, data)) in p.terms.iter().zip(shapes.iter().zip(&data)) {
                let place = t.iter().zip(shape).fold(0, |place, (&(l, _), &len)| place * len + if len == 1 { 0 } else { at(l) });
                x *= data[place];
            }
            let sum = sums.get_mut(&out.iter().map(|&l| at(l)).collect::<Vec<_>>()).unwrap();
            *sum = (sum.0 + x, sum.1 + x.abs());
        }
        // Each term is rounded once an operand and once a sum, on both sides.
        let u = C * widest_float().unit_roundoff() * (count + p.terms.len()) as f64;
        for (g, (want, size)) in numbers(&got).iter().zip(sums.values()) {
            prop_assert!(is_close(*g, c128::new(*want, 0.0), u * size), "{}: {} instead of {}", text, g, want);
        }
    }
}
