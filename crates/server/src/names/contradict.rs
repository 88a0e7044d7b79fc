//! A defect made on purpose, so that the simulation can prove that a server which contradicts itself serves nothing more.

use crate::state::Server;

impl Server {
    /// Gives one of its shards an operation on an entry of another one, as a defect would.
    ///
    /// # Panics
    /// If the server has no shards yet, or the volume has only one.
    pub fn contradict(&self) {
        let cell = self.shards.iter().next().expect("the server has shards");
        let name = aze_proto::Name::new(b"x").expect("it is a name");
        let keys = (1..).map(|number| aze_meta::EntryKey::new(aze_proto::Ino(number), name.clone()));
        let key = keys.into_iter().find(|key| key.hash.shard(self.config.shards) != cell.id).expect("keys have no end");
        let unlock = aze_meta::Op::Unlock { key, tx: aze_proto::TxId(1) };
        let applied = cell.names.lock().shard.apply(&unlock, &aze_meta::Stamp::default());
        assert!(applied.is_poison, "{applied:?}");
    }
}
