//! Volumes whose servers, disks and power fail, simulated (see `clients.rs`).

mod alone;
mod check;
mod disk_failed;
mod disk_faults;
mod disk_low;
mod found;
mod keeper_durable;
mod links;
mod lives;
mod many;
mod moving_durable;
mod persistent;
mod persistent_sabotage;
mod release;
mod root;
mod rot;
mod support;
mod unconfirmed;
mod without;
