//! What stands for products of words where the processor's family has none that are known here.

use super::Isa;
use super::tile::Micro;

/// None.
pub(crate) fn halves(_isa: Isa) -> Option<&'static Micro<f32>> {
    None
}
/// None.
pub(crate) fn shorts(_isa: Isa) -> Option<&'static Micro<i32>> {
    None
}
/// None.
pub(crate) fn bytes(_isa: Isa) -> Option<&'static Micro<i32>> {
    None
}
