//! The client beside a server, which opens files for the clients of its node (FINCHFS, "contact servers").
//!
//! It alone knows that a server has a client of the volume: the server asks a [`Contact`], and the client is one like any other, with a session
//! of its own at the homes of files, which ends with the server's process. What may be opened again without a request the client knows.

mod turns;

use crate::turns::Turns;
use aze_client::{Client, Config};
use aze_io::Io;
use aze_io::sync::Mutex;
use aze_proto::limits::CONTACT_JOB;
use aze_proto::{Failure, Identity, Ino, ShardMap};
use aze_server::{IsTold, Through, Wanted};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// Opens files for the clients of a node. It connects when it is asked for the first file.
pub struct Contact {
    io: Io,
    config: Config,
    client: Mutex<Option<Arc<Client>>>,
    turns: Turns<(Identity, Ino, Vec<u8>)>,
}

impl Contact {
    /// One that connects with this configuration, under a name of its own for the job; the map comes with each question.
    pub fn new(io: Io, config: Config) -> Arc<Contact> {
        let config = Config { job: CONTACT_JOB.to_owned(), ..config };
        Arc::new(Contact { io, config, client: Mutex::default(), turns: Turns::new() })
    }

    fn client(&self, map: &ShardMap, is_told: IsTold) -> Arc<Client> {
        let mut client = self.client.lock();
        let client = client.get_or_insert_with(|| {
            let client = Client::connect_knowing(self.io.clone(), self.config.clone(), map.clone());
            // The client itself forgets a file that is recalled, and holds no copies for others.
            client.listen(Box::new(|_| async {}.boxed()));
            client.believe_names_in(is_told);
            client
        });
        client.clone()
    }
}

impl aze_server::Contact for Contact {
    fn open(self: Arc<Self>, wanted: Wanted) -> BoxFuture<'static, Result<Through, Failure>> {
        async move {
            let Wanted { map, who, dir, path, follow, contents, epoch, is_told } = wanted;
            let client = self.client(&map, is_told);
            let _turn = self.turns.turn((who.clone(), dir, path.clone())).await;
            let (file, is_shared) = client.open_shared(&who, (dir, &path, follow), epoch).await?;
            let contents = if contents { file.contents_as_opened() } else { None };
            Ok(Through { attr: file.attr(), is_shared, contents, held: Box::new(file) })
        }
        .boxed()
    }
}
