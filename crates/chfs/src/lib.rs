//! The interface of CHFS: it alone knows the functions of `include/chfs.h`, and what programs written for CHFS take for
//! granted.
//!
//! That is: flags may be numbers of the program's own, so that a descriptor is always for reading and writing; every process
//! of a job calls `create` for a shared file; `init` and `term` repeat, and calls come after `term`; a chunk size is set
//! before `init`; paths end in slashes; no transfer is short. The whole body of each function runs in
//! [`aze_cabi::catch`].

#![allow(clippy::missing_safety_doc)]

mod connection;
mod files;
mod names;
mod stagein;
