//! A client that may have noted an answer by half asks servers anew.
//!
//! It alone knows which of a client's tables hold answers that it believes without a question. The others need no forgetting: a
//! size or a generation of an open file that is too old is refused by servers, since another client may have changed it; a map or
//! an epoch of names, too.

use crate::client::{Client, Core};

impl Client {
    /// Forgets all that this client would believe without asking. For a caller that has caught a panic of one of its operations:
    /// servers may have answered, and the answer is noted nowhere.
    pub fn forget_what_it_believes(&self) {
        let Core { dirs, dir_attrs, entered, attributed, contents, leases, moves, subscribed, .. } = &*self.core;
        dirs.forget_all();
        dir_attrs.forget_all();
        entered.forget_all();
        attributed.forget_all();
        contents.forget_all();
        self.core.forget_opens();
        subscribed.servers_changed();
        leases.void_all();
        // It may have given a name without counting it: the next sync asks all servers.
        moves.count();
    }
}
