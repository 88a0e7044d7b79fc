//! `--cores`: which cores of a node the servers use.

use crate::exit::{Exit, Outcome, Trouble};
use aze_io::real;
use std::fmt;
use std::str::FromStr;

/// Larger numbers are no cores of any machine.
const CORES_MAX: usize = 65_536;

/// What `--cores` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// So many, the last ones of those that the servers may use.
    Count(usize),
    /// These.
    List(Vec<usize>),
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Cores, String> {
        let wrong = || format!("'{text}' is neither a number of cores nor a list such as 0-3,8");
        if let Ok(count) = text.parse() {
            return if count > 0 { Ok(Cores::Count(count)) } else { Err(wrong()) };
        }
        let mut list = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) =
                (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
            if first > last || last >= CORES_MAX {
                return Err(wrong());
            }
            list.extend(first..=last);
        }
        list.sort_unstable();
        list.dedup();
        Ok(Cores::List(list))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cores::Count(count) => write!(out, "{count}"),
            // A comma marks a list of one as a list.
            Cores::List(list) => {
                let words: Vec<String> = list.iter().map(|core| format!("{core}-{core}")).collect();
                write!(out, "{}", words.join(","))
            }
        }
    }
}

impl Cores {
    /// Those of `allowed` that are meant.
    fn among(&self, allowed: &[usize]) -> Outcome<Vec<usize>> {
        let refused = |what: String| {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let text = format!("--cores: {what}: servers of this node may use {}", allowed.join(","));
            Trouble::new(Exit::Caller, text)
        };
        match self {
            Cores::Count(count) if *count > allowed.len() => Err(refused(format!("{count} are too many"))),
            Cores::Count(count) => Ok(allowed[allowed.len() - count..].to_vec()),
            Cores::List(list) => match list.iter().find(|core| !allowed.contains(core)) {
                Some(core) => Err(refused(format!("core {core} is not among them"))),
                None => Ok(list.clone()),
            },
        }
    }

    /// Keeps this thread, and those that it starts from now on, on these cores; gives how many they are.
    ///
    /// # Errors
    /// The node has not got them, or this process may not use them.
    pub fn take(&self) -> Outcome<usize> {
        let cores = self.among(&real::processors())?;
        real::keep_on(&cores).map_err(|error| Trouble::local("keep the server on its cores", &error))?;
        Ok(cores.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_or_listed() {
        assert_eq!("2".parse(), Ok(Cores::Count(2)));
        assert_eq!("0-2,7,1".parse(), Ok(Cores::List(vec![0, 1, 2, 7])));
        for wrong in ["0", "", "3-1", "a", "1,", "0-99999"] {
            assert!(wrong.parse::<Cores>().is_err(), "{wrong}");
        }
        for text in ["2", "0-2,7", "3-3"] {
            let cores: Cores = text.parse().expect("it can be read");
            assert_eq!(cores.to_string().parse(), Ok(cores));
        }
    }

    #[test]
    fn only_allowed_cores_are_taken() {
        let among = |text: &str| text.parse::<Cores>().expect("it can be read").among(&[2, 3, 6]).ok();
        assert_eq!(among("2"), Some(vec![3, 6]));
        assert_eq!(among("2-3"), Some(vec![2, 3]));
        assert_eq!((among("4"), among("2,4")), (None, None));
    }
}
