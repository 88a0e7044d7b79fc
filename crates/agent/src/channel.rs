//! One channel: requests are taken, done and answered, one after the other.

use crate::agent::Agent;
use crate::call::Call;
use crate::error::Fault;
use crate::indexes::Resolved;
use crate::mailbox::{Asked, Channel};
use crate::panics;
use crate::processor::Follower;
use crate::program::Program;
use crate::sys::{self, Mailbox, Window};
use aze_calls::mailbox::Way;
use aze_calls::{Hello, LEAVES, MESSAGE_BYTES_MAX, Op, Reply, Request, VERSION, Welcome};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What an operation gives.
#[derive(Default)]
pub struct Answer {
    /// The system call's result.
    pub result: i64,
    /// A description.
    pub desc: u64,
    /// What follows the reply's header.
    pub bytes: Vec<u8>,
    /// A descriptor for the program.
    pub passed: Option<OwnedFd>,
    /// Takes the effect back if the program has not taken the answer.
    pub undo: Option<Box<dyn FnOnce()>>,
}

impl Answer {
    /// A number alone.
    pub fn of(result: u64) -> Answer {
        Answer { result: i64::try_from(result).unwrap_or(i64::MAX), ..Answer::default() }
    }

    /// 0 and these bytes.
    pub fn with(bytes: Vec<u8>) -> Answer {
        Answer { bytes, ..Answer::default() }
    }
}

/// The life of a channel; blocks until it ends.
pub fn serve(agent: &Arc<Agent>, socket: OwnedFd, is_one_too_many: bool) {
    let (program, mut window, mailbox) = match begin(agent, &socket, is_one_too_many) {
        Ok(begun) => begun,
        Err(error) => {
            agent.say(format_args!("refuse a channel: {error}"));
            let result = -error.raw_os_error().unwrap_or(libc::EPROTO);
            let refusal = Welcome { result, ..Welcome::default() };
            // The other side may have gone.
            let _ = sys::send(&socket, [sys::bytes_of(&refusal), &[]], None);
            return;
        }
    };
    let channel = Arc::new(Channel::new(agent.number(), socket, mailbox));
    // A process that was forked may have a copy of the channel, and does not use it.
    program.hears_of_end(&channel);
    match agent.watch_channel(&channel) {
        Ok(()) => {
            requests(agent, &program, &mut window, &channel);
            agent.forget_channel(&channel);
        }
        Err(error) => agent.say(format_args!("watch a channel: {error}")),
    }
    channel.end();
    channel.reserved().into_iter().for_each(|pipe| agent.give_pipe_back(pipe));
}

/// Does what is asked, until the channel ends.
fn requests(agent: &Arc<Agent>, program: &Arc<Program>, window: &mut Window, channel: &Arc<Channel>) {
    let (mut packet, mut follower) = (Box::new([0; MESSAGE_BYTES_MAX]), Follower::new());
    while let Some(Asked { packet, is_in_mailbox }) = channel.next(&mut packet) {
        // The way is the operation's: a program waits for its reply at one place.
        let parsed = parse(packet).filter(|(_, op, _)| !is_in_mailbox || op.way() != Way::Packets);
        let Some((request, op, bytes)) = parsed else {
            return agent.say(format_args!("process {} sent no request: its channel is closed", program.process.pid));
        };
        if is_in_mailbox && op.way() == Way::Descriptor {
            channel.has_taken();
        }
        follower.follow(request.processor);
        let (window, resolved) = (&mut *window, Resolved::default());
        let mut call = Call { agent, program, channel, request: &request, bytes, window, resolved };
        let acted = panics::calling(channel, || call.act(op));
        let resolved = call.resolved;
        let mut answer = acted.unwrap_or_else(|fault| answer_to(agent, op, fault));
        resolved.add_to(&mut answer);
        let answers_there = match op.way() {
            Way::Mailbox => true,
            Way::Either => answer.passed.is_none(),
            Way::Descriptor | Way::Packets => false,
        };
        if is_in_mailbox && answers_there {
            put(channel, answer);
            continue;
        }
        let undo = answer.undo.take();
        // Of a process that has ended the channel may live on, in a child that it has forked: the send would succeed.
        let has_gone = undo.is_some() && sys::has_ended(&program.descriptor);
        if has_gone || send(&channel.socket, answer).is_err() {
            undo.into_iter().for_each(|undo| undo());
            return;
        }
        if is_in_mailbox && op.way() == Way::Either {
            channel.has_sent();
        }
    }
}

fn begin(agent: &Arc<Agent>, socket: &OwnedFd, is_one_too_many: bool) -> io::Result<(Arc<Program>, Window, Mailbox)> {
    let failed = io::Error::from_raw_os_error;
    let (pid, uid) = sys::peer(socket)?;
    if uid != agent.uid() || pid == 0 {
        return Err(failed(libc::EPERM));
    }
    let mut packet = [0; 64];
    let count = sys::receive(socket, &mut packet)?;
    let hello =
        sys::take::<Hello>(&packet[..count]).filter(|(hello, rest)| hello.version == VERSION && rest.is_empty());
    hello.ok_or_else(|| failed(libc::EPROTO))?;
    if is_one_too_many {
        return Err(failed(libc::EAGAIN));
    }
    let program = agent.program(pid)?;
    let (window, mailbox, descriptor) = sys::channel_memory()?;
    sys::send(socket, [sys::bytes_of(&agent.welcome()), &[]], Some(descriptor.as_fd()))?;
    Ok((program, window, mailbox))
}

fn parse(packet: &[u8]) -> Option<(Request, Op, &[u8])> {
    let (request, bytes) = sys::take::<Request>(packet)?;
    let op = Op::of_number(request.op)?;
    (request.bytes as usize == bytes.len()).then_some((request, op, bytes))
}

/// The answer to an operation that has failed, or has led out of the volume.
fn answer_to(agent: &Agent, op: Op, fault: Fault) -> Answer {
    match fault {
        Fault::Leaves(path) => Answer { result: LEAVES, ..Answer::with(path) },
        Fault::SecondLeaves(path) => Answer { result: LEAVES, desc: 1, ..Answer::with(path) },
        Fault::Failed(error) => {
            // What a program has caused itself is its own business.
            if matches!(
                error.errno,
                libc::EIO | libc::ETIMEDOUT | libc::EPROTO | libc::EMFILE | libc::ENFILE | libc::ENOMEM
            ) {
                agent.say(format_args!("{op:?}: {error}"));
            }
            Answer { result: -i64::from(error.errno), ..Answer::default() }
        }
    }
}

/// Header and bytes of a reply, and the descriptor that comes with it.
fn reply(answer: Answer) -> (Reply, Vec<u8>, Option<OwnedFd>) {
    let Answer { result, desc, bytes, passed, .. } = answer;
    debug_assert!(bytes.len() + size_of::<Reply>() <= MESSAGE_BYTES_MAX);
    (Reply { result, desc, bytes: bytes.len() as u32, has_fd: u32::from(passed.is_some()) }, bytes, passed)
}

fn send(socket: &OwnedFd, answer: Answer) -> io::Result<()> {
    let (reply, bytes, passed) = reply(answer);
    sys::send(socket, [sys::bytes_of(&reply), &bytes], passed.as_ref().map(OwnedFd::as_fd))
}

fn put(channel: &Channel, answer: Answer) {
    debug_assert!(answer.undo.is_none(), "an effect that may be taken back");
    let (reply, bytes, passed) = reply(answer);
    debug_assert!(passed.is_none(), "a descriptor");
    channel.answer(&reply, &bytes);
}
