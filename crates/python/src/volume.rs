//! Volumes, and requests that are waited for.

use crate::buffer::Held;
use crate::convert::outcome;
use crate::request::{Given, Prepared, Request};
use crate::wait::{Failed, wait_for, without_lock};
use aze_handles::{Connected, Result};
use futures_util::{StreamExt, stream};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::Arc;

/// A volume by its name, else the one that is meant: see the package's `Volume`.
#[pyclass(frozen, module = "azekura._azekura")]
pub struct Volume {
    volume: Arc<aze_handles::Volume>,
}

impl Volume {
    /// This process's connection. Blocks if it has to be made.
    pub fn connected(&self, py: Python<'_>) -> PyResult<Arc<Connected>> {
        without_lock(py, || Ok(self.volume.connected()?)).map_err(|failed| failed.exception(py, &[]))
    }
}

/// What a request came to, as an object. Its memory is released here.
pub fn finish(
    py: Python<'_>,
    result: std::result::Result<Given, Failed>,
    held: Option<Held>,
    names: &[Py<PyAny>],
) -> PyResult<Py<PyAny>> {
    let bytes: Option<Py<PyBytes>> = match held {
        Some(Held::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    match result {
        Ok(given) => outcome(py, given, bytes).map(Bound::unbind),
        Err(failed) => Err(failed.exception(py, names)),
    }
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (name=None))]
    fn new(py: Python<'_>, name: Option<&str>) -> PyResult<Volume> {
        let volume = without_lock(py, || Ok(aze_handles::Volume::open(name)?));
        Ok(Volume { volume: volume.map_err(|failed| failed.exception(py, &[]))? })
    }

    #[getter]
    fn name(&self) -> &str {
        self.volume.name()
    }

    /// How many servers it has.
    fn servers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.connected(py)?.servers())
    }

    fn umask(&self, py: Python<'_>, mask: u32) -> PyResult<u32> {
        Ok(self.connected(py)?.set_umask(mask))
    }

    /// Ends this process's connection. Blocks until servers have been told, 20 s at most.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let volume = &self.volume;
        without_lock(py, || {
            volume.close();
            Ok(())
        })
        .map_err(|failed| failed.exception(py, &[]))
    }

    /// Plants a defect: 0 in the call itself, 1 in an operation that it waits for, 2 in a task of the connection. For tests; in
    /// builds with debug assertions only.
    #[cfg(debug_assertions)]
    fn test_panic(&self, py: Python<'_>, place: i32) -> PyResult<()> {
        let volume = &self.volume;
        let planted = without_lock(py, || {
            let connected = volume.connected()?;
            match place {
                0 => panic!("planted in a call"),
                1 => wait_for(&connected, async { panic!("planted in an operation") }),
                _ => {
                    connected.plant_panic();
                    wait_for(&connected, std::future::pending())
                }
            }
        });
        planted.map_err(|failed| failed.exception(py, &[]))
    }

    /// Blocks until a request is done; gives its outcome.
    fn wait(&self, py: Python<'_>, request: &Request) -> PyResult<Py<PyAny>> {
        let Prepared { act, held, names } = request.take()?;
        let volume = &self.volume;
        let result = without_lock(py, || {
            let connected = volume.connected()?;
            wait_for(&connected, act.run(connected.clone()))
        });
        finish(py, result, held, &names)
    }

    /// Blocks until all requests are done, at most `at_once` of them at a time; gives a list with each one's outcome, or its
    /// exception. The thread that calls does all of the work.
    fn wait_all(&self, py: Python<'_>, requests: Vec<PyRef<'_, Request>>, at_once: usize) -> PyResult<Py<PyAny>> {
        if at_once == 0 {
            return Err(PyValueError::new_err("at least one request has to be under way"));
        }
        let taken = requests.iter().map(|request| request.take()).collect::<PyResult<Vec<Prepared>>>()?;
        let mut acts = Vec::with_capacity(taken.len());
        let mut kept = Vec::with_capacity(taken.len());
        for Prepared { act, held, names } in taken {
            acts.push(act);
            kept.push((held, names));
        }
        let volume = &self.volume;
        let results = without_lock(py, || {
            let connected = volume.connected()?;
            let running = acts.into_iter().map(|act| act.run(connected.clone()));
            let all = stream::iter(running).buffered(at_once).collect::<Vec<Result<Given>>>();
            wait_for(&connected, async { Ok(all.await) })
        });
        let results = results.map_err(|failed| failed.exception(py, &[]))?;
        let outcomes = results.into_iter().zip(kept).map(|(result, (held, names))| {
            let finished = finish(py, result.map_err(Failed::Operation), held, &names);
            finished.unwrap_or_else(|exception| exception.into_value(py).into_any())
        });
        Ok(PyList::new(py, outcomes.collect::<Vec<_>>())?.into_any().unbind())
    }
}
