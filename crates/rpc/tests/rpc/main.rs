//! Both ends of the room against each other, over the simulated network and the real one.

mod faults;
mod lanes;
mod places;
mod real;
mod service;
mod trust;
