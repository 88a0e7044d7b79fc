//! Requests that go on while their caller does something else, for event loops.

use crate::buffer::Held;
use crate::request::{Given, Prepared, Request};
use crate::volume::{Volume, finish};
use crate::wait::{Failed, without_lock};
use aze_handles::{Completion, Queue as Queued};
use aze_io::sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

/// Requests of one volume and process that are under way. At most 65,536, with those whose outcomes were not picked up.
#[pyclass(frozen, module = "azekura._azekura")]
pub struct Queue {
    queue: Queued<Given>,
    /// Locked with the interpreter's lock held, and for no wait: so no other thread has it locked at a fork.
    under_way: Mutex<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    last_tag: u64,
    /// Memory that operations use, and paths for their exceptions.
    kept: BTreeMap<u64, (Option<Held>, Vec<Py<PyAny>>)>,
}

#[pymethods]
impl Queue {
    #[new]
    fn new(py: Python<'_>, volume: &Volume) -> PyResult<Queue> {
        let connected = volume.connected(py)?;
        let queue = without_lock(py, || Ok(Queued::new(&connected)?));
        let queue = queue.map_err(|failed| failed.exception(py, &[]))?;
        Ok(Queue { queue, under_way: Mutex::default() })
    }

    /// Begins a request; gives the number by which its outcome is picked up. Does not block.
    fn submit(&self, py: Python<'_>, request: &Request) -> PyResult<u64> {
        let failed = |error, names: &[Py<PyAny>]| Failed::Operation(error).exception(py, names);
        let connected = self.queue.connected().map_err(|error| failed(error, &[]))?;
        let Prepared { act, held, names } = request.take()?;
        let tag = {
            let mut under_way = self.under_way.lock();
            under_way.last_tag += 1;
            let tag = under_way.last_tag;
            // Before the operation begins, which uses the memory.
            under_way.kept.insert(tag, (held, names));
            tag
        };
        let queue = &self.queue;
        let begun = without_lock(py, || Ok(queue.submit(tag, act.run(connected))?));
        begun.map(|()| tag).map_err(|failed| {
            let kept = self.under_way.lock().kept.remove(&tag);
            failed.exception(py, &kept.map(|(_, names)| names).unwrap_or_default())
        })
    }

    /// Outcomes that are there: a list of numbers and outcomes or exceptions. Does not block.
    fn poll(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let done = self.queue.poll(usize::MAX).map_err(|error| Failed::Operation(error).exception(py, &[]))?;
        let outcomes = done.into_iter().map(|Completion { tag, result }| {
            let (held, names) = self.under_way.lock().kept.remove(&tag).unwrap_or_default();
            let finished = finish(py, result.map_err(Failed::Operation), held, &names);
            (tag, finished.unwrap_or_else(|exception| exception.into_value(py).into_any()))
        });
        Ok(PyList::new(py, outcomes.collect::<Vec<_>>())?.into_any().unbind())
    }

    /// How many requests are under way.
    fn pending(&self, py: Python<'_>) -> PyResult<usize> {
        self.queue.pending().map_err(|error| Failed::Operation(error).exception(py, &[]))
    }

    /// A descriptor that is readable while there are outcomes. It must neither be read nor closed.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.queue.event().map_err(|error| Failed::Operation(error).exception(py, &[]))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let queue = &self.queue;
        // No operation uses memory of Python objects afterwards. In a forked process none of them runs.
        Python::attach(|py| drop(without_lock(py, || Ok(queue.drain()?))));
    }
}
