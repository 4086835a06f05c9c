//! What a micro-kernel needs of a vector of accumulators.

/// Most lanes of a vector.
pub(crate) const MOST_LANES: usize = 16;

/// A vector of `LANES` accumulators; a complex one keeps real and imaginary parts apart.
///
/// Methods are `unsafe` because they read or write through raw pointers, and because those of one instruction set may
/// only run where the processor has it.
pub(crate) trait Vector: Copy {
    /// Scalar in packed memory.
    type Part: Copy;
    /// Accumulators in the vector.
    const LANES: usize;
    /// Scalars of one accumulator: 2 for complex, else 1.
    const PARTS: usize;
    /// Asks for the memory of a vector that will be written, where the processor can.
    #[inline(always)]
    unsafe fn prefetch(_at: *const Self::Part) {}
    /// All the number that sums begin at: −0, or 0 of an exact dtype.
    unsafe fn neutral() -> Self;
    /// One element (its parts stand side by side) in every lane.
    unsafe fn splat(at: *const Self::Part) -> Self;
    /// All lanes: as many parts as they have, real parts, then imaginary parts.
    unsafe fn load(at: *const Self::Part) -> Self;
    /// All lanes, the two parts of one side by side in memory.
    #[inline(always)]
    unsafe fn load_beside(at: *const Self::Part) -> Self {
        // SAFETY: handed on from the caller.
        unsafe { Self::load(at) }
    }
    /// The first `lanes` lanes, the others 0. A complex vector stands as [`Vector::beside`] makes it.
    unsafe fn load_part(at: *const Self::Part, lanes: usize) -> Self;
    /// Writes all lanes.
    unsafe fn store(self, at: *mut Self::Part);
    /// Writes all lanes past the caches, where the processor can; `at` is aligned to the vector.
    #[inline(always)]
    unsafe fn stream(self, at: *mut Self::Part) {
        // SAFETY: the caller gives LANES writable parts.
        unsafe { self.store(at) }
    }
    /// Writes the first `lanes` lanes, likewise.
    unsafe fn store_part(self, at: *mut Self::Part, lanes: usize);
    /// acc + a·b by the rule of the dtype.
    unsafe fn fma(a: Self, b: Self, acc: Self) -> Self;
    /// Sum.
    unsafe fn add(self, other: Self) -> Self;
    /// The lanes as they stand in a result: the two parts of one side by side.
    #[inline(always)]
    unsafe fn beside(self) -> Self {
        self
    }
    /// The first `LANES` rows across their diagonal.
    #[inline(always)]
    unsafe fn cross(rows: &mut [Self; MOST_LANES]) {
        let all = rows.as_mut_ptr().cast::<Self::Part>();
        for i in 0..Self::LANES {
            for j in 0..i {
                // SAFETY: a vector is at least LANES parts, so that both stand inside the rows.
                unsafe { all.add(i * Self::LANES + j).swap(all.add(j * Self::LANES + i)) };
            }
        }
    }
}

/// A real vector that can also subtract a product.
pub(crate) trait RealVector: Vector {
    /// acc − a·b, rounded once.
    unsafe fn fnma(a: Self, b: Self, acc: Self) -> Self;
    /// Lanes of two vectors by turns.
    unsafe fn mixed(a: Self, b: Self) -> [Self; 2];
    /// Two vectors whose lanes by turns are these.
    unsafe fn apart(a: Self, b: Self) -> [Self; 2];
}

/// A complex vector. `SWAPPED` says that `a` is the call's rhs and `b` its lhs: the two products of the imaginary part
/// are added in the order of the call's operands.
#[derive(Clone, Copy)]
pub(crate) struct Cx<V, const SWAPPED: bool> {
    re: V,
    im: V,
}

impl<V: RealVector, const SWAPPED: bool> Vector for Cx<V, SWAPPED> {
    type Part = V::Part;
    const LANES: usize = V::LANES;
    const PARTS: usize = 2;
    #[inline(always)]
    unsafe fn prefetch(at: *const V::Part) {
        // SAFETY: a hint.
        unsafe {
            V::prefetch(at);
            V::prefetch(at.wrapping_add(V::LANES));
        }
    }
    #[inline(always)]
    unsafe fn neutral() -> Self {
        // SAFETY: the caller's promise about the instruction set.
        unsafe { Cx { re: V::neutral(), im: V::neutral() } }
    }
    #[inline(always)]
    unsafe fn splat(at: *const V::Part) -> Self {
        // SAFETY: the caller gives two readable parts.
        unsafe { Cx { re: V::splat(at), im: V::splat(at.add(1)) } }
    }
    #[inline(always)]
    unsafe fn load(at: *const V::Part) -> Self {
        // SAFETY: the caller gives 2·LANES readable parts.
        unsafe { Cx { re: V::load(at), im: V::load(at.add(V::LANES)) } }
    }
    #[inline(always)]
    unsafe fn load_beside(at: *const V::Part) -> Self {
        // SAFETY: the caller gives 2·LANES readable parts.
        let [re, im] = unsafe { V::apart(V::load(at), V::load(at.add(V::LANES))) };
        Cx { re, im }
    }
    #[inline(always)]
    unsafe fn load_part(at: *const V::Part, lanes: usize) -> Self {
        let first = V::LANES.min(2 * lanes);
        // SAFETY: the caller gives 2·`lanes` readable parts.
        unsafe { Cx { re: V::load_part(at, first), im: V::load_part(at.wrapping_add(V::LANES), 2 * lanes - first) } }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut V::Part) {
        // SAFETY: the caller gives 2·LANES writable parts.
        unsafe {
            self.re.store(at);
            self.im.store(at.add(V::LANES));
        }
    }
    #[inline(always)]
    unsafe fn stream(self, at: *mut V::Part) {
        // SAFETY: the caller gives 2·LANES writable parts, aligned.
        unsafe {
            self.re.stream(at);
            self.im.stream(at.add(V::LANES));
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, at: *mut V::Part, lanes: usize) {
        let first = V::LANES.min(2 * lanes);
        // SAFETY: the caller gives 2·`lanes` writable parts.
        unsafe {
            self.re.store_part(at, first);
            self.im.store_part(at.wrapping_add(V::LANES), 2 * lanes - first);
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, acc: Self) -> Self {
        // SAFETY: the caller's promise about the instruction set.
        unsafe {
            let re = V::fnma(a.im, b.im, V::fma(a.re, b.re, acc.re));
            let im = if SWAPPED { V::fma(a.re, b.im, V::fma(a.im, b.re, acc.im)) } else { V::fma(a.im, b.re, V::fma(a.re, b.im, acc.im)) };
            Cx { re, im }
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller's promise about the instruction set.
        unsafe { Cx { re: self.re.add(other.re), im: self.im.add(other.im) } }
    }
    #[inline(always)]
    unsafe fn beside(self) -> Self {
        // SAFETY: the caller's promise about the instruction set.
        let [re, im] = unsafe { V::mixed(self.re, self.im) };
        Cx { re, im }
    }
}
