//! gradcheck and gradgradcheck: what they let pass and what they say of a wrong gradient.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use bilin_core::autograd::{BackwardContext, ForwardContext, Function, GradcheckOptions, gradcheck, gradgradcheck};
use bilin_core::{DType, Device, Result, Rng, Tensor, c128};

fn random(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(shape, dtype, &Device::reference(), &mut Rng::new(7)).unwrap()
}
fn message(outcome: Result<()>) -> String {
    outcome.unwrap_err().to_string()
}

/// x², whose gradient is wrong at one element.
struct Crooked(usize);
impl Function for Crooked {
    fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        ctx.save_for_backward(&[&x[0]]);
        Ok(vec![x[0].mul(&x[0])?])
    }
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let x = &ctx.saved()[0];
        let factors = (0..x.numel()).map(|i| c128::new(if i == self.0 { 2.5 } else { 2.0 }, 0.0)).collect();
        let factors = Tensor::from_vec(factors, x.shape(), x.device())?;
        let factors = if x.dtype().is_complex() { factors } else { factors.real()? };
        let slope = x.mul(&factors)?;
        Ok(vec![Some(g[0].mul(&if x.dtype().is_complex() { slope.conj()? } else { slope })?)])
    }
}

#[test]
fn the_wrong_element_is_named_with_both_numbers() {
    for (at, index) in [(0, "[0, 0, 0]"), (7, "[0, 1, 3]"), (17, "[1, 1, 1]"), (23, "[1, 2, 3]")] {
        for dtype in [DType::F64, DType::C128] {
            let x = random(&[2, 3, 4], dtype);
            let y = random(&[2, 3, 4], dtype);
            let f = |x: &[Tensor]| Crooked(at).apply(&[&x[1]])?.remove(0).add(&x[0])?.neg();
            let text = message(gradcheck(f, &[&y, &x], GradcheckOptions::default()));
            assert!(text.contains(&format!("1 of neg of add of Crooked: at element {index} the derivative is ")), "{text}");
            let numbers: Vec<f64> = text
                .split("the derivative is ")
                .nth(1)
                .unwrap()
                .split(", the difference quotient ")
                .map(|t| t.split([';', '+']).next().unwrap())
                .filter_map(|t| if dtype == DType::F64 { t.parse().ok() } else { None })
                .collect();
            assert!(dtype.is_complex() || (numbers[0] / numbers[1] - 1.25).abs() < 1e-6, "{text}");
            assert!(!dtype.is_complex() || text.contains("i, the difference quotient"), "{text}");
        }
    }
}

#[test]
fn a_gradient_of_nan_and_a_missing_one_are_found() {
    let x = random(&[3], DType::F64);
    let cut = |x: &[Tensor]| x[0].detach().mul(&x[1]);
    let text = message(gradcheck(cut, &[&x, &x], GradcheckOptions::default()));
    assert!(text.contains("0 of mul: at element [") && text.contains("the derivative is 0e0"), "{text}");
    let broken = |x: &[Tensor]| x[0].mul(&x[0].scalar_like(f64::NAN)?);
    assert!(message(gradcheck(broken, &[&x], GradcheckOptions::default())).contains("NaN"));
}

#[test]
fn a_wrong_second_derivative_is_found_where_the_first_is_right() {
    struct Flat;
    impl Function for Flat {
        fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
            ctx.save_constants(&[&x[0]]);
            Ok(vec![x[0].mul(&x[0])?])
        }
        fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![Some(g[0].mul(&ctx.constants()[0].mul_scalar(2.0)?)?)])
        }
    }
    let (x, f) = (random(&[4], DType::F64), |x: &[Tensor]| Ok(Flat.apply(&[&x[0]])?.remove(0)));
    gradcheck(f, &[&x], GradcheckOptions::default()).unwrap();
    assert!(message(gradgradcheck(f, &[&x], GradcheckOptions::default())).contains("0 of"));
}

#[test]
fn strided_and_broadcast_inputs_are_checked_where_they_are() {
    let wide = random(&[5], DType::F64).broadcast_to([3, 5]).unwrap();
    let turned = random(&[5, 3], DType::C128).mt().unwrap();
    let sliced = random(&[6, 10], DType::F64).slice(0, Some(-1), None, -2).unwrap().slice(1, None, None, 2).unwrap();
    assert_eq!((wide.strides()[0], turned.is_contiguous(), sliced.shape()), (0, false, &[3, 5][..]));
    let f = |x: &[Tensor]| x[0].mul(&x[2])?.sin()?.astype(DType::C128)?.mul(&x[1])?.sum(0, false);
    gradcheck(f, &[&wide, &turned, &sliced], GradcheckOptions::default()).unwrap();
    gradgradcheck(f, &[&wide, &turned, &sliced], GradcheckOptions::default()).unwrap();
}
