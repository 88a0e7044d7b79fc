//! A bit flipped in the store is never served: the reader gets an error that names server and
//! chunk.

use crate::support::{ROOT, create, with_cluster};
use aze_proto::Code;
use aze_sim::bytes::data_of;
use aze_sim::cluster::CHUNK_BITS;

/// Flips in this test.
const FLIPS: u64 = 100;

#[test]
fn every_flipped_bit_is_an_error_that_names_server_and_chunk() {
    with_cluster(3, |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/rot", 0o755).await.expect("a directory can be made").ino;
        let mut rng = cluster.sim.rng("flips");
        let len = 3usize << CHUNK_BITS;
        let data = data_of(1, 0, len);
        for flip in 0..FLIPS {
            let file = create(&client, dir, &format!("f{flip}")).await;
            file.write(0, &data).await.expect("there is room");
            let chunk = rng.below(3);
            let bit = rng.below(8 << CHUNK_BITS);
            let servers = cluster.servers();
            let rotten = servers
                .iter()
                .find(|server| server.flip_bit(file.ino(), chunk, bit))
                .expect("one server has the chunk");
            let failure = file.read(0, len).await.expect_err("a rotten byte is not served");
            assert_eq!(failure.code, Code::Corrupt, "{failure}");
            let text = failure.to_string();
            assert!(text.contains(&format!("chunk {chunk}")), "no chunk in '{text}'");
            let server = rotten.status().index;
            assert!(text.contains(&format!("server {server}")), "no server in '{text}'");
            let other = (chunk + 1) % 3;
            let offset = other << CHUNK_BITS;
            let whole = file.read(offset, 1 << CHUNK_BITS).await.expect("the other chunks are sound");
            assert_eq!(whole, data[offset as usize..][..1 << CHUNK_BITS]);
            file.close().await.expect("a file that is open can be closed");
            client
                .unlink(&ROOT, dir, &crate::support::name(&format!("f{flip}")))
                .await
                .expect("a rotten file can be removed");
        }
    });
}
