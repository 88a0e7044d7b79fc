//! What a client makes of data that are shared with it through shared memory.

use crate::answers::{damaged, data};
use crate::fake::{BOTH, FILE, Scripted, attr, attributes, config, map, who};
use aze_client::Client;
use aze_io::Addr;
use aze_io::real::Runtime;
use aze_io::slab::{BASE_BYTES, Slab};
use aze_proto::handshake::Secret;
use aze_proto::{Attr, Request};
use aze_rpc::{ServeConfig, serve};
use std::os::unix::fs::MetadataExt;

const BYTES: usize = 4 * BASE_BYTES;

#[test]
fn shared_data_that_are_not_what_was_said_are_asked_for_again() {
    let path = std::env::temp_dir().join(format!("aze-client-lent-{}", std::process::id()));
    let path = path.to_str().unwrap().to_string();
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    let contents: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let expected = contents.clone();
    let slab = Slab::new(4 * BYTES as u64).unwrap();
    let mut reads = 0;
    let script = move |_: &_, request: &_, _: &[u8]| match request {
        Request::Open { .. } => attributes(Attr { chunk_bits: 20, ..attr(BYTES as u64, 0) }),
        _ => {
            reads += 1;
            // As if the memory had been used again meanwhile.
            if reads == 1 { damaged(&contents) } else { data(&contents) }
        }
    };
    let service = Scripted::new(map(1, &format!("unix:{path}")), Some(slab.clone()), script);
    let server = Runtime::server(1);
    server.io().share_slab(&slab);
    let serving = ServeConfig {
        secret: Secret([1; 32]),
        volume: "v".into(),
        versions: aze_proto::limits::WIRE_VERSIONS,
        uid,
        published: None,
    };
    let _listener = serve(&server.io(), &Addr::Unix(path.clone()), &serving, service.clone()).unwrap();
    let runtime = Runtime::client();
    runtime.block_on(async {
        let client = Client::connect(runtime.io(), config("s0", Addr::Unix(path))).await.unwrap();
        let file = client.open(&who(), FILE, BOTH).await.unwrap();
        service.asked();
        assert!(file.read(0, BYTES).await.unwrap() == expected);
    });
    assert_eq!(service.asked().iter().map(|(_, request)| request.name()).collect::<Vec<_>>(), ["Read", "Read"]);
    runtime.shutdown();
    server.shutdown();
}
