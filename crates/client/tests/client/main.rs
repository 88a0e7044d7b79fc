//! A client against a server whose answers the tests script: answers that servers of a healthy
//! volume give seldom or never.

mod answers;
mod fake;
mod refusals;
mod shared_read;
