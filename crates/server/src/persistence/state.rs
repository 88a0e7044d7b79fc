//! The state of persistence: directories, journal, the image of an earlier life, each with its own methods.

pub(crate) mod image;
pub(crate) mod persistence;
pub(crate) mod promises;
pub(crate) mod record;
pub(crate) mod room;
pub(crate) mod roots;
pub(crate) mod starts;
