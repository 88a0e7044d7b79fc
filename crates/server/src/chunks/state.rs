//! What a server knows of files that came from the volume's backing, beside what the shards have.

pub(crate) mod backed;
pub(crate) mod evictions;
