//! What stands for products of words where the processor's family has none that are known here.

use super::tile::Micro;

/// None.
pub(crate) fn halves() -> Option<&'static Micro<f32>> {
    None
}
/// None.
pub(crate) fn shorts() -> Option<&'static Micro<i32>> {
    None
}
/// None.
pub(crate) fn bytes() -> Option<&'static Micro<i32>> {
    None
}
