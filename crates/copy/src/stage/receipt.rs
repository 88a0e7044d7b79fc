//! The receipt of a stage: its name is free before the first copy, or it says the same already.

use super::prove::now;
use super::{Stage, says_the_same};
use aze_receipt::{Draft, End, Head, Key, Line, Object, when};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;

/// A stage that failed when so many objects were proven: codes of what is in the way say that nothing was copied.
pub(super) fn unfinished(proven: u64, trouble: Trouble) -> Trouble {
    match trouble.exit {
        Exit::Caller | Exit::Denied | Exit::NotFound if proven > 0 => {
            let text = format!("{}: {proven} objects are proven: the same command goes on from here", trouble.text);
            Trouble::new(Exit::Some, text)
        }
        _ => trouble,
    }
}

impl Stage<'_> {
    /// A receipt is never replaced, but for one of an earlier attempt that was killed after its last step but one.
    pub(super) fn receipt_in_the_way(&self, attempts: &[String]) -> Option<Trouble> {
        let (path, _) = self.order.receipt.as_ref().filter(|(path, _)| path.symlink_metadata().is_ok())?;
        let is_ours = |signed: aze_receipt::Signed| attempts.contains(&signed.head.attempt);
        let is_free = aze_receipt::Signed::open(path, None).is_ok_and(is_ours);
        (!is_free).then(|| aze_receipt::is_there(path))
    }

    pub(super) fn write(&self, path: &std::path::Path, key: &Key, lines: BTreeMap<Vec<u8>, Object>) -> Outcome<End> {
        let public = key.public();
        let head = Head {
            direction: self.order.direction.into(),
            source: self.order.source.clone(),
            destination: self.order.destination.clone(),
            attempt: self.proof.attempt.clone(),
            started: self.started.clone(),
            program: self.order.program.clone(),
            key: public.to_string(),
            key_id: public.id(),
        };
        let hidden = |attempt: &str| path.with_file_name(format!(".aze-receipt-{attempt}"));
        let attempts = self.proof.journal.lock().known().attempts.clone();
        for attempt in &attempts {
            // Of an attempt that was killed while it wrote.
            match std::fs::remove_file(hidden(attempt)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Trouble::local(format!("remove {}", hidden(attempt).display()), &error));
                }
                _ => {}
            }
        }
        if self.report.resumed > 0
            && let Ok(signed) = aze_receipt::Signed::open(path, Some(&public))
            && attempts.contains(&signed.head.attempt)
            && signed.end.missing == 0
            && says_the_same(&signed, &lines)?
        {
            // An earlier attempt was killed after its last step but one.
            return Ok(signed.end);
        }
        let hidden = hidden(&self.proof.attempt);
        let mut draft = Draft::begin(path, hidden, &head)?;
        for object in lines.into_values() {
            draft.add(&Line::Object(Box::new(object)))?;
        }
        for removed in &self.removed {
            draft.add(&Line::Removed(removed.clone()))?;
        }
        draft.finish(when(now()), self.report.missing, key)
    }
}
