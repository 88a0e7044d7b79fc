//! What clients see, simulated. The files of this folder are three programs: a program for each takes three times as long to build.

mod client_appends;
mod client_attrs;
mod client_comeback;
mod client_data;
mod client_leases;
mod client_locks;
mod client_opens;
mod client_paths;
mod client_sessions;
mod client_trees;
mod contact;
mod contents;
mod exchange;
mod given;
mod parts;
mod paths;
mod published;
mod requests;
mod rough;
mod subscriber;
mod support;
mod unchanged;
