//! A client against a server that says whatever a test wants it to say: what servers of a healthy
//! volume say seldom or never.

mod answers;
mod fake;
mod lent;
mod refusals;
