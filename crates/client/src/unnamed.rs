//! Files that are made without a name.

use crate::client::Client;
use crate::file::{Access, File};
use crate::route::Place;
use aze_proto::{Attr, Code, Failure, Identity, Ino, Name, Request};
use std::sync::Arc;

impl Client {
    /// Makes a regular file without a name, as if in directory `parent`, and opens it. It goes with its
    /// last open, unless [`Client::link`] gives it a name before. `mode` as in [`crate::NewFile`].
    ///
    /// # Errors
    /// As for making a name: [`Code::AccessDenied`], [`Code::NoSpace`].
    pub async fn create_unnamed(
        &self,
        who: &Identity,
        parent: Ino,
        mode: u32,
        access: Access,
    ) -> Result<(Attr, Arc<File>), Failure> {
        // It says where the file will be, and is not made.
        let name = Name::new(format!(".unnamed-{:016x}", self.core.io.random_u64()).as_bytes())
            .map_err(|_| Failure::from(Code::Internal))?;
        let handle = self.core.new_handle();
        let request = Request::CreateUnnamed { parent, name: name.clone(), mode, open: handle, write: access.write };
        let reply = self.core.ask(who, Place::Entry(parent, &name), &request).await;
        let attr = reply.and_then(|reply| self.core.entry(&request, reply)).and_then(|entry| {
            entry.attr.ok_or_else(|| Failure::new(Code::Malformed, "a new file came without attributes"))
        });
        attr.map(|attr| {
            let open = self.core.registered(attr.ino, handle);
            (attr.clone(), File::opened(&self.core, who, &attr, access, open, None, false))
        })
    }
}
