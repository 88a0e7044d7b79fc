//! `--network`: at which of their node's addresses servers listen.

use crate::exit::{Exit, Outcome, Trouble};
use crate::sys;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What `--network` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// The addresses of an interface of this name.
    Interface(String),
    /// Addresses that share so many leading bits with this one.
    Range(IpAddr, u32),
}

fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || format!("'{text}' is neither a network such as 10.1.0.0/16 nor the name of an interface");
        let Some((address, length)) = text.split_once('/') else {
            let is_name = !text.is_empty() && text.len() < libc::IFNAMSIZ && !text.contains(char::is_whitespace);
            return if is_name { Ok(Network::Interface(text.into())) } else { Err(wrong()) };
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let length: u32 = length.parse().map_err(|_| wrong())?;
        if length > bits(address).1 { Err(wrong()) } else { Ok(Network::Range(address, length)) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::Interface(name) => write!(out, "{name}"),
            Network::Range(address, length) => write!(out, "{address}/{length}"),
        }
    }
}

impl Network {
    fn has(&self, interface: &str, address: IpAddr) -> bool {
        match self {
            Network::Interface(name) => name == interface,
            Network::Range(range, length) => {
                let ((range, width), (address, other)) = (bits(*range), bits(address));
                width == other && (range ^ address).checked_shr(128 - length).unwrap_or(0) == 0
            }
        }
    }

    /// The address of this node that is meant: of several the first of version 4, else the first.
    ///
    /// # Errors
    /// This node has none.
    pub fn address(&self) -> Outcome<IpAddr> {
        let all = sys::addresses().map_err(|error| Trouble::local("look for this node's addresses", &error))?;
        let mut fits: Vec<IpAddr> =
            all.iter().filter(|(name, address)| self.has(name, *address)).map(|(_, address)| *address).collect();
        fits.sort_by_key(IpAddr::is_ipv6);
        fits.first().copied().ok_or_else(|| {
            let all: Vec<String> = all.iter().map(|(name, address)| format!("{name} {address}")).collect();
            let text = format!("--network {self}: this node has no such address: it has {}", all.join(", "));
            Trouble::new(Exit::Caller, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_networks_or_not() {
        for (network, interface, address, is_in) in [
            ("10.1.0.0/16", "eth0", "10.1.255.3", true),
            ("10.1.0.0/16", "eth0", "10.2.0.1", false),
            ("10.1.0.0/16", "eth0", "::1", false),
            ("0.0.0.0/0", "eth0", "10.2.0.1", true),
            ("10.1.2.3/32", "eth0", "10.1.2.3", true),
            ("fd00::/8", "ib0", "fd12::1", true),
            ("fd00::/8", "ib0", "fe80::1", false),
            ("ib0", "ib0", "10.1.2.3", true),
            ("ib0", "ib1", "10.1.2.3", false),
        ] {
            let network: Network = network.parse().expect("it can be read");
            assert_eq!(network.has(interface, address.parse().expect("an address")), is_in, "{network} {address}");
        }
        for wrong in ["", "10.1.0.0/33", "a/b", "/", "a name", "an-interface-with-a-long-name"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn this_node_has_a_loopback_address() {
        let address = "127.0.0.0/8".parse::<Network>().expect("it can be read").address();
        assert!(address.is_ok_and(|address| address.is_loopback()));
        let missing = "203.0.113.0/24".parse::<Network>().expect("it can be read").address();
        assert!(missing.is_err_and(|trouble| trouble.text.contains("it has lo 127.0.0.1")));
    }
}
