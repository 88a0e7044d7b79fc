//! The same over real sockets.

use crate::service::{Counting, SECRET, caller, config, lookup, start, target, unlink};
use aze_io::Listener;
use aze_io::real::Runtime;
use aze_proto::Code;
use aze_proto::handshake::Secret;
use aze_rpc::{Caller, Target};
use std::sync::Arc;

struct Server {
    runtime: Arc<Runtime>,
    service: Arc<Counting>,
    _listener: Box<dyn Listener>,
    to: Target,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.shutdown();
    }
}

fn server(addr: &str) -> Server {
    let runtime = Runtime::server(2);
    let service = Counting::new(&runtime.io(), 2_000_000);
    let listener = start(&runtime.io(), &addr.parse().unwrap(), &service);
    let to = target(0, "here", &[&listener.addr().to_string()]);
    Server { runtime, service, _listener: listener, to }
}

fn socket_path(test: &str) -> String {
    std::env::temp_dir().join(format!("aze-rpc-{test}-{}", std::process::id())).to_str().unwrap().into()
}

/// Many threads of one process ask over one connection.
fn ask_from_threads(server: &Server) {
    let runtime = Runtime::client();
    let caller = caller(&runtime.io(), 5);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (runtime, caller, to) = (&runtime, &caller, &server.to);
            scope.spawn(move || {
                for i in 0..50 {
                    runtime.block_on(unlink(caller, to, thread, &format!("{thread}.{i}"), 10)).unwrap();
                    let payload = vec![thread as u8; 70_000];
                    assert_eq!(runtime.block_on(lookup(caller, to, 1, &payload, 10)).unwrap().payload, payload);
                }
            });
        }
    });
    let seen = server.service.seen.lock();
    assert_eq!((seen.effects.len(), seen.opened), (200, 1));
    assert!(seen.effects.values().all(|times| *times == 1));
    assert_eq!(caller.counters().sent, seen.requests);
}

#[test]
fn over_tcp() {
    ask_from_threads(&server("tcp:127.0.0.1:0"));
}

#[test]
fn over_a_local_socket() {
    ask_from_threads(&server(&format!("unix:{}", socket_path("local"))));
}

#[test]
fn a_local_socket_needs_the_secret_too() {
    let server = server(&format!("unix:{}", socket_path("secret")));
    let runtime = Runtime::client();
    let stranger = Caller::new(runtime.io(), config(Secret([9; 32]), 5));
    assert_eq!(runtime.block_on(unlink(&stranger, &server.to, 0, "a", 1)).unwrap_err().code, Code::Unreachable);
    assert_eq!(server.service.seen.lock().opened, 0);
}

#[test]
fn local_sockets_can_be_left_aside() {
    let server = server(&format!("unix:{}", socket_path("aside")));
    let runtime = Runtime::client();
    let caller =
        Caller::new(runtime.io(), aze_rpc::CallerConfig { transport: aze_io::Transport::Tcp, ..config(SECRET, 5) });
    let failure = runtime.block_on(unlink(&caller, &server.to, 0, "a", 5)).unwrap_err();
    assert_eq!(failure.code, Code::Unreachable);
    assert!(failure.detail.contains("no address"), "{failure}");
}
