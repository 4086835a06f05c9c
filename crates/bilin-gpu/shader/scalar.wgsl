// Conversions and functions that WGSL lacks, or has with too little precision or undefined values. All work on bits where
// NaN and Inf matter: a compiler may assume that floats are neither.

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn is_zero(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0u; }
fn nan_of(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) | 0x7fc00000u); }
fn inf_of(x: f32) -> f32 { return bitcast<f32>((bitcast<u32>(x) & 0x80000000u) | 0x7f800000u); }

fn f16_to_f32(h: u32) -> f32 {
    let sign = (h & 0x8000u) << 16u;
    let e = (h >> 10u) & 0x1fu;
    let m = h & 0x3ffu;
    if e == 31u { return bitcast<f32>(sign | 0x7f800000u | (m << 13u)); }
    if e == 0u { return bitcast<f32>(sign | bitcast<u32>(f32(m) * 5.9604644775390625e-8)); }
    return bitcast<f32>(sign | ((e + 112u) << 23u) | (m << 13u));
}

fn f32_to_f16(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    let sign = (b >> 16u) & 0x8000u;
    let a = b & 0x7fffffffu;
    if a > 0x7f800000u { return sign | 0x7e00u; }
    if a >= 0x477ff000u { return sign | 0x7c00u; }
    if a < 0x38800000u {
        let e = a >> 23u;
        if e < 102u { return sign; }
        let m = (a & 0x7fffffu) | 0x800000u;
        let shift = 126u - e;
        let q = m >> shift;
        let rest = m & ((1u << shift) - 1u);
        let half = 1u << (shift - 1u);
        return sign | (q + select(0u, 1u, rest > half || (rest == half && (q & 1u) == 1u)));
    }
    let r = a - 0x38000000u;
    return sign | ((r + 0xfffu + ((r >> 13u) & 1u)) >> 13u);
}

fn bf16_to_f32(h: u32) -> f32 { return bitcast<f32>(h << 16u); }

fn f32_to_bf16(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    if is_nan(x) { return (b >> 16u) | 0x40u; }
    return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}

// Saturates; NaN is 0.
fn f32_to_i32(x: f32, low: f32, high: f32, least: i32, most: i32) -> i32 {
    if is_nan(x) { return 0; }
    if x >= high { return most; }
    if x <= low { return least; }
    return i32(x);
}

fn max_f32(a: f32, b: f32) -> f32 { return select(b, a, is_nan(a) || (!is_nan(b) && a >= b)); }
fn min_f32(a: f32, b: f32) -> f32 { return select(b, a, is_nan(a) || (!is_nan(b) && a <= b)); }

// x, behind bits that are zero where `any` is a number, which no driver can see. Constants that stand in several parts are
// subtracted one after the other; a driver that adds the parts before it multiplies loses all but the first.
fn apart(x: f32, any: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) | (bitcast<u32>(abs(any)) >> 31u)); }

fn exp_f32(x: f32) -> f32 {
    if is_nan(x) { return x; }
    if x > 88.8 { return inf_of(1.0); }
    if x < -104.0 { return 0.0; }
    let n = round(x * 1.44269504);
    let r = fma(n, -1.42860677e-6, apart(fma(n, -0.693145751953125, x), x));
    var p = 0.00138888889;
    p = fma(p, r, 0.00833333333);
    p = fma(p, r, 0.0416666667);
    p = fma(p, r, 0.166666667);
    p = fma(p, r, 0.5);
    p = fma(p * r, r, r) + 1.0;
    // 2ⁿ in two factors: n itself may lie outside the exponents.
    let i = i32(n);
    let half = i / 2;
    return p * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(i - half + 127) << 23u);
}

fn log_f32(x: f32) -> f32 {
    if is_nan(x) { return x; }
    if is_zero(x) { return -inf_of(1.0); }
    if x < 0.0 { return nan_of(x); }
    if is_inf(x) { return x; }
    // x is 2ⁿ·m with m around 1, and ln m twice the area tangent of (m − 1)/(m + 1), by its series.
    let is_small = x < 1.1754944e-38;
    let bits = bitcast<u32>(select(x, x * 8388608.0, is_small));
    let raised = bits + (0x3f800000u - 0x3f3504f3u);
    let n = f32(i32(raised >> 23u) - select(127, 150, is_small));
    let f = bitcast<f32>((raised & 0x007fffffu) + 0x3f3504f3u) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    var p = 0.09090909;
    p = fma(p, z, 0.111111111);
    p = fma(p, z, 0.142857143);
    p = fma(p, z, 0.2);
    p = fma(p, z, 0.333333333);
    let near = fma(2.0 * s * z, p, 2.0 * s);
    return fma(n, 0.693359375, fma(n, -2.12194440e-4, near));
}

fn log1p_f32(x: f32) -> f32 {
    let u = 1.0 + x;
    if is_nan(x) || u == 1.0 || is_inf(x) { return select(x, log_f32(u), is_inf(x)); }
    if u <= 0.0 { return log_f32(u); }
    return log_f32(u) * (x / (u - 1.0));
}

fn expm1_f32(x: f32) -> f32 {
    if is_nan(x) { return x; }
    if abs(x) < 0.35 {
        var p = 0.000198412698;
        p = fma(p, x, 0.00138888889);
        p = fma(p, x, 0.00833333333);
        p = fma(p, x, 0.0416666667);
        p = fma(p, x, 0.166666667);
        p = fma(p, x, 0.5);
        return fma(p * x, x, x);
    }
    return exp_f32(x) - 1.0;
}

fn tanh_f32(x: f32) -> f32 {
    if is_nan(x) || is_zero(x) { return x; }
    if abs(x) > 10.0 { return select(-1.0, 1.0, x > 0.0); }
    let t = expm1_f32(2.0 * abs(x));
    let y = t / (t + 2.0);
    return select(-y, y, x > 0.0);
}

fn sigmoid_f32(x: f32) -> f32 {
    if is_nan(x) { return x; }
    if x < -88.0 { return exp_f32(x); }
    return 1.0 / (1.0 + exp_f32(-x));
}

fn sqrt_f32(x: f32) -> f32 {
    if is_nan(x) || is_zero(x) { return x; }
    if x < 0.0 { return nan_of(x); }
    if is_inf(x) { return x; }
    return sqrt(x);
}

// Both, after taking multiples of π/2 off in three parts: right to 2⁻²² up to |x| of about 10⁴.
fn sin_or_cos(x: f32, turn: i32) -> f32 {
    if is_nan(x) { return x; }
    if is_inf(x) { return nan_of(x); }
    let n = round(x * 0.636619772);
    // π/2 in four parts of eleven bits and less, whose products with n below 2¹³ are exact.
    var r = apart(fma(n, -1.5703125, x), x);
    r = apart(fma(n, -0.000483512878417968750, r), x);
    r = apart(fma(n, -3.13855707645416259766e-7, r), x);
    r = fma(n, -6.07710050650619224932e-11, r);
    let s = r * r;
    let quadrant = (i32(n) + turn) & 3;
    var p: f32;
    if (quadrant & 1) == 0 {
        p = fma(fma(fma(fma(2.75573e-6, s, -0.000198412698), s, 0.00833333333), s, -0.166666667) * s, r, r);
    } else {
        p = fma(fma(fma(fma(2.48015873e-5, s, -0.00138888889), s, 0.0416666667), s, -0.5), s, 1.0);
    }
    return select(p, -p, quadrant >= 2);
}

fn pow_f32(a: f32, b: f32) -> f32 {
    if b == 2.0 { return a * a; }
    if is_zero(b) || a == 1.0 { return 1.0; }
    if is_nan(a) || is_nan(b) { return nan_of(a); }
    let is_whole = floor(b) == b || abs(b) >= 8388608.0;
    let is_odd = is_whole && abs(b) < 16777216.0 && (i32(b) & 1) == 1;
    let size = abs(a);
    var y: f32;
    if is_zero(a) || is_inf(a) || is_inf(b) {
        if size == 1.0 { return 1.0; }
        y = select(inf_of(1.0), 0.0, (size < 1.0) == (b > 0.0));
    } else {
        y = select(pow(size, b), size, b == 1.0);
    }
    let is_negative = (bitcast<u32>(a) >> 31u) == 1u;
    if is_negative && !is_zero(a) && !is_inf(a) && !is_whole { return nan_of(a); }
    return select(y, -y, is_negative && is_odd);
}

fn sign_f32(x: f32) -> f32 {
    if is_nan(x) || is_zero(x) { return x; }
    return select(-1.0, 1.0, x > 0.0);
}

// erfc of x ≥ ½: e^(−x²)/(1 + 2x) times a polynomial in (x − 3.75)/(x + 3.75), fitted at Chebyshev points up to x = 10.6.
fn erfc_above(far: f32) -> f32 {
    let x = min(far, 10.6);
    // x² as the exact square of twelve bits and a rest: e^(−x²) enlarges a rounding of x² by x².
    let high = bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
    let bell = exp_f32(-high * high) * exp_f32((high - x) * (high + x));
    let s = (x - 3.75) / (x + 3.75);
    var p = -6.691675998479971e-5;
    p = fma(p, s, -0.0004187422468475154);
    p = fma(p, s, 0.0002936061721547731);
    p = fma(p, s, 0.0018300809967300936);
    p = fma(p, s, -0.009719254254318964);
    p = fma(p, s, 0.02834830527840472);
    p = fma(p, s, -0.05870124896403841);
    p = fma(p, s, 0.09230531447761536);
    p = fma(p, s, -0.10880312808251894);
    p = fma(p, s, 0.08227671627559086);
    p = fma(p, s, 0.0035853873447483885);
    p = fma(p, s, -0.14024059847503423);
    p = fma(p, s, 1.2375126309959645);
    return bell * p / (1.0 + 2.0 * x);
}

// erf of |x| < 1 by its series.
fn erf_near(x: f32) -> f32 {
    let s = x * x;
    var p = 1.3122532963802806e-8;
    p = fma(p, s, -1.450385222315047e-7);
    p = fma(p, s, 1.4589169000933706e-6);
    p = fma(p, s, -1.3227513227513228e-5);
    p = fma(p, s, 1.0683760683760684e-4);
    p = fma(p, s, -7.575757575757576e-4);
    p = fma(p, s, 4.62962962962963e-3);
    p = fma(p, s, -2.3809523809523808e-2);
    p = fma(p, s, 0.1);
    p = fma(p, s, -0.3333333333333333);
    p = fma(p, s, 1.0);
    return 1.1283791670955126 * x * p;
}

fn erf_f32(x: f32) -> f32 {
    if is_nan(x) { return x; }
    let size = abs(x);
    if size < 1.0 { return erf_near(x); }
    let y = 1.0 - erfc_above(size);
    return select(-y, y, x > 0.0);
}

fn erfc_f32(x: f32) -> f32 {
    if is_nan(x) { return x; }
    if abs(x) < 0.5 { return 1.0 - erf_near(x); }
    let y = erfc_above(abs(x));
    return select(2.0 - y, y, x > 0.0);
}
