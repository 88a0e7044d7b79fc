//! The handshake as two state machines without any I/O: steps in, steps out.
//!
//! It alone knows in which order the steps come and what each end checks. Frames are sealed and
//! carried by other modules.

use aze_io::Credentials;
use aze_proto::frame::{self, FrameKey, Header, Kind};
use aze_proto::handshake::{Hello, Secret, Step, Transcript, Versions, hello_proof, same};
use aze_proto::limits::{HANDSHAKE_VERSION, fingerprint};
use aze_proto::wire::{Malformed, Wire};
use aze_proto::{Code, Failure, MapEpoch};

/// Longest name of a job in bytes.
const JOB_BYTES_MAX: usize = 255;

/// The two keys of a connection, and its version.
#[derive(Clone)]
pub(crate) struct Keys {
    /// Of all frames but those of the handshake.
    pub(crate) version: u8,
    /// For frames from client to server.
    pub(crate) client: FrameKey,
    /// For frames from server to client.
    pub(crate) server: FrameKey,
}

impl Keys {
    fn of(transcript: &Transcript, version: u8) -> Keys {
        Keys { version, client: transcript.client_key(), server: transcript.server_key() }
    }
}

/// Encodes a step as the head of a frame.
pub(crate) fn seal_step(step: &Step, key: Option<&FrameKey>) -> Vec<u8> {
    frame::seal(&Header::new(Kind::Handshake, 0), &step.to_bytes(), 0, key)
}

/// Decodes a frame that must hold a step.
pub(crate) fn open_step(head: &[u8], payload_bytes: usize, key: Option<&FrameKey>) -> Result<Step, Malformed> {
    let (header, body) = frame::open(head, payload_bytes, key)?;
    if header.kind != Kind::Handshake || header.version != HANDSHAKE_VERSION {
        return Err(Malformed { what: "a step of the handshake", at: 0 });
    }
    Step::from_bytes(body)
}

/// The key of the one frame by which a server refuses a client that does know the secret. The server's
/// nonce is not known yet: zeros stand for it, so that it is no key of any connection.
pub(crate) fn refusal_key(secret: &Secret, hello: &Hello) -> FrameKey {
    Transcript::new(secret, hello, &[0; 32], HANDSHAKE_VERSION).server_key()
}

/// Encodes a refusal as the head of a frame, which a client of any version can read.
pub(crate) fn seal_refusal(failure: &Failure, key: &FrameKey) -> Vec<u8> {
    let header = Header { version: HANDSHAKE_VERSION, ..Header::new(Kind::Failure, 0) };
    frame::seal(&header, &failure.to_bytes(), 0, Some(key))
}

/// The client's side: a greeting was sent, or a proof.
pub(crate) struct Greeting {
    secret: Secret,
    hello: Hello,
    /// Known once the server has proven itself.
    keys: Option<Keys>,
}

/// What the client does next.
pub(crate) enum Next {
    /// Send this step.
    Send(Step),
    /// Nothing: a step that was seen before came again.
    Nothing,
    /// The handshake is over; the server has this map.
    Done(MapEpoch),
}

impl Greeting {
    /// Starts with a greeting, whose nonce is random; the step is what to send first.
    pub(crate) fn new(secret: &Secret, hello: Hello) -> (Greeting, Step) {
        let step = Step::Hello { hello: hello.clone(), proof: hello_proof(secret, &hello) };
        (Greeting { secret: secret.clone(), hello, keys: None }, step)
    }

    /// The keys, once the server has proven itself.
    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// Key of a refusal, see [`refusal_key`].
    pub(crate) fn refusal_key(&self) -> FrameKey {
        refusal_key(&self.secret, &self.hello)
    }

    /// Takes the server's next step.
    ///
    /// # Errors
    /// [`Code::NotAuthentic`] when the server's proof is wrong; [`Code::Version`] when its constants differ;
    /// [`Code::Malformed`] when the step makes no sense here.
    pub(crate) fn take(&mut self, step: &Step) -> Result<Next, Failure> {
        match step {
            &Step::Challenge { ref nonce, version, fingerprint: said, ref proof } if self.keys.is_none() => {
                let transcript = Transcript::new(&self.secret, &self.hello, nonce, version);
                if !same(proof, &transcript.server_proof()) {
                    return Err(Failure::new(Code::NotAuthentic, "its proof is wrong"));
                }
                if !self.hello.versions.contain(version) {
                    let detail = format!("the server chose version {version} of {}", self.hello.versions);
                    return Err(Failure::new(Code::Malformed, detail));
                }
                if said != fingerprint(version) {
                    let detail = format!(
                        "client and server are builds with different constants in wire version {version}: use the same \
                         version of aze on all nodes"
                    );
                    return Err(Failure::new(Code::Version, detail));
                }
                self.keys = Some(Keys::of(&transcript, version));
                Ok(Next::Send(Step::Proof { proof: transcript.client_proof() }))
            }
            Step::Challenge { .. } => Ok(Next::Nothing),
            Step::Welcome { map_epoch } if self.keys.is_some() => Ok(Next::Done(*map_epoch)),
            _ => Err(Failure::new(Code::Malformed, format!("'{}' is no step of a server at this point", step.name()))),
        }
    }
}

/// The server's side before a greeting came.
pub(crate) struct Knock<'a> {
    /// The volume's secret.
    pub(crate) secret: &'a Secret,
    /// The volume served.
    pub(crate) volume: &'a str,
    /// The versions that the server speaks.
    pub(crate) versions: Versions,
    /// The server's user.
    pub(crate) uid: u32,
    /// The client's user, on a local socket.
    pub(crate) credentials: Option<Credentials>,
}

/// Why a greeting is not answered by a challenge.
pub(crate) enum Turned {
    /// Without the secret, or senseless: close and say nothing.
    Away(&'static str),
    /// With the secret: say why, under this key.
    Down(Failure, FrameKey),
}

/// The server's side after its challenge.
pub(crate) struct Challenged {
    /// What the client said.
    pub(crate) hello: Hello,
    transcript: Transcript,
    version: u8,
}

impl Knock<'_> {
    /// Takes the first step of a client; `nonce` is random.
    pub(crate) fn take(&self, step: Step, nonce: [u8; 32]) -> Result<(Challenged, Step), Turned> {
        let Step::Hello { hello, proof } = step else {
            return Err(Turned::Away("the first step is no greeting"));
        };
        if !same(&proof, &hello_proof(self.secret, &hello)) {
            return Err(Turned::Away("a greeting without the volume's secret"));
        }
        let turned_down = |failure| Turned::Down(failure, refusal_key(self.secret, &hello));
        let version = self.common_version(&hello).map_err(turned_down)?;
        if let Some(failure) = self.objection(&hello) {
            return Err(turned_down(failure));
        }
        let transcript = Transcript::new(self.secret, &hello, &nonce, version);
        let (fingerprint, proof) = (fingerprint(version), transcript.server_proof());
        let challenge = Step::Challenge { nonce, version, fingerprint, proof };
        Ok((Challenged { hello, transcript, version }, challenge))
    }

    fn common_version(&self, hello: &Hello) -> Result<u8, Failure> {
        self.versions.common(hello.versions).ok_or_else(|| {
            let detail = format!(
                "the client speaks wire version {}, and the server {}: use a version of aze on both nodes that speaks one \
                 of the other's ('aze version' tells)",
                hello.versions, self.versions
            );
            Failure::new(Code::Version, detail)
        })
    }

    fn objection(&self, hello: &Hello) -> Option<Failure> {
        if hello.volume != self.volume {
            let detail = format!(
                "this is a server of volume '{}', not of '{}': check the volume's name",
                self.volume, hello.volume
            );
            return Some(Failure::new(Code::NotAuthentic, detail));
        }
        if let Some(peer) = self.credentials.filter(|peer| peer.uid != 0 && peer.uid != self.uid) {
            let detail =
                format!("the server of user {} lets in only this user and root, not user {}", self.uid, peer.uid);
            return Some(Failure::new(Code::AccessDenied, detail));
        }
        (hello.job.len() > JOB_BYTES_MAX)
            .then(|| Failure::new(Code::Limit, format!("the name of the job is longer than {JOB_BYTES_MAX} bytes")))
    }
}

impl Challenged {
    /// Takes the client's answer; `Ok(None)` means that the greeting came a second time.
    pub(crate) fn take(&self, step: &Step) -> Result<Option<Keys>, &'static str> {
        match step {
            Step::Proof { proof } if same(proof, &self.transcript.client_proof()) => {
                Ok(Some(Keys::of(&self.transcript, self.version)))
            }
            Step::Proof { .. } => Err("a proof that is wrong"),
            Step::Hello { hello, .. } if *hello == self.hello => Ok(None),
            _ => Err("a step that makes no sense after the challenge"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::SessionId;
    use aze_proto::limits::WIRE_VERSION;
    use aze_proto::wire::Blob;

    const RIGHT: Secret = Secret([1; 32]);
    const WRONG: Secret = Secret([2; 32]);

    /// The versions of the server; the newest is this build's, so that its constants are known.
    const SERVED: Versions = Versions { oldest: WIRE_VERSION - 1, newest: WIRE_VERSION };

    fn greet(secret: &Secret, volume: &str) -> (Greeting, Step) {
        greet_as(secret, volume, SERVED)
    }

    fn greet_as(secret: &Secret, volume: &str, versions: Versions) -> (Greeting, Step) {
        let (session, nonce, volume, job) = (SessionId(5), [3; 32], volume.into(), "job".into());
        Greeting::new(secret, Hello { versions, session, nonce, volume, server: false, job, more: Blob::default() })
    }

    fn knock(step: Step) -> Result<(Challenged, Step), Turned> {
        knock_as(None, step)
    }

    fn knock_as(credentials: Option<Credentials>, step: Step) -> Result<(Challenged, Step), Turned> {
        Knock { secret: &RIGHT, volume: "v", versions: SERVED, uid: 1000, credentials }.take(step, [4; 32])
    }

    #[test]
    fn local_sockets_are_for_the_same_user_and_root() {
        for (uid, welcome) in [(1000, true), (0, true), (1001, false)] {
            let result = knock_as(Some(Credentials { uid, gid: 1, pid: 1 }), greet(&RIGHT, "v").1);
            assert_eq!(result.is_ok(), welcome, "user {uid}");
            assert!(welcome || matches!(result, Err(Turned::Down(Failure { code: Code::AccessDenied, .. }, _))));
        }
    }

    #[test]
    fn both_ends_agree_on_the_keys() {
        let (mut client, hello) = greet(&RIGHT, "v");
        let Ok((server, challenge)) = knock(hello.clone()) else { panic!("challenged") };
        let Ok(Next::Send(proof)) = client.take(&challenge) else { panic!("proof") };
        assert!(matches!(client.take(&challenge), Ok(Next::Nothing)), "a duplicate changes nothing");
        assert!(matches!(server.take(&hello), Ok(None)), "a duplicate changes nothing");
        let keys = server.take(&proof).unwrap().unwrap();
        assert_eq!(client.keys().unwrap().client, keys.client);
        assert_eq!(client.keys().unwrap().server, keys.server);
        assert_ne!(keys.client, keys.server);
        assert!(matches!(client.take(&Step::Welcome { map_epoch: MapEpoch(9) }), Ok(Next::Done(MapEpoch(9)))));
        assert_eq!(server.hello.session, SessionId(5));
    }

    #[test]
    fn a_client_without_the_secret_gets_no_answer() {
        assert!(matches!(knock(greet(&WRONG, "v").1), Err(Turned::Away(_))));
        assert!(matches!(knock(Step::Proof { proof: [0; 32] }), Err(Turned::Away(_))));
        let Ok((server, _)) = knock(greet(&RIGHT, "v").1) else { panic!("challenged") };
        assert!(server.take(&Step::Proof { proof: [0; 32] }).is_err());
        assert!(server.take(&greet(&RIGHT, "other").1).is_err());
    }

    #[test]
    fn a_server_without_the_secret_is_found_out() {
        let (mut client, _) = greet(&RIGHT, "v");
        let Err(failure) =
            client.take(&Step::Challenge { nonce: [4; 32], version: WIRE_VERSION, fingerprint: 0, proof: [0; 32] })
        else {
            panic!("refused")
        };
        assert_eq!(failure.code, Code::NotAuthentic);
        assert!(client.keys().is_none());
        assert!(client.take(&Step::Welcome { map_epoch: MapEpoch(1) }).is_err(), "a welcome before any proof");
    }

    #[test]
    fn who_knows_the_secret_is_told_what_is_wrong() {
        let Err(Turned::Down(failure, key)) = knock(greet(&RIGHT, "other").1) else { panic!("told") };
        assert_eq!((failure.code, key), (Code::NotAuthentic, greet(&RIGHT, "other").0.refusal_key()));
    }

    /// A peer that speaks older versions, newer ones, or both.
    #[test]
    fn the_newest_version_that_both_speak_is_chosen() {
        let (old, new) = (SERVED.oldest, SERVED.newest);
        for (oldest, newest, chosen) in
            [(1, old, old), (1, new, new), (old, old, old), (old, new + 3, new), (new, new, new)]
        {
            let (mut client, hello) = greet_as(&RIGHT, "v", Versions { oldest, newest });
            let Ok((server, challenge)) = knock(hello) else { panic!("{oldest} to {newest}: turned away") };
            let Ok(Next::Send(proof)) = client.take(&challenge) else { panic!("{oldest} to {newest}: no proof") };
            let keys = server.take(&proof).unwrap().expect("the proof is right");
            assert_eq!(
                (keys.version, client.keys().map(|keys| keys.version)),
                (chosen, Some(chosen)),
                "{oldest} to {newest}"
            );
        }
        for (oldest, newest) in [(1, old - 1), (new + 1, new + 3), (new, old)] {
            let (client, hello) = greet_as(&RIGHT, "v", Versions { oldest, newest });
            let Err(Turned::Down(failure, key)) = knock(hello) else { panic!("{oldest} to {newest}: let in") };
            assert_eq!((failure.code, key), (Code::Version, client.refusal_key()));
            let (theirs, ours) = (Versions { oldest, newest }.to_string(), format!("the server {SERVED}"));
            assert!(failure.detail.contains(&theirs) && failure.detail.contains(&ours), "{failure}");
        }
    }

    /// The server chooses what the client does not speak, or has other constants; only a defect can.
    #[test]
    fn a_choice_that_cannot_be_is_refused() {
        let challenge = |version, fingerprint| {
            let (client, _) = greet(&RIGHT, "v");
            let proof = Transcript::new(&RIGHT, &client.hello, &[4; 32], version).server_proof();
            (client, Step::Challenge { nonce: [4; 32], version, fingerprint, proof })
        };
        for (version, said, code) in [
            (WIRE_VERSION + 1, fingerprint(WIRE_VERSION + 1), Code::Malformed),
            (WIRE_VERSION, fingerprint(WIRE_VERSION - 1), Code::Version),
        ] {
            let (mut client, step) = challenge(version, said);
            let Err(failure) = client.take(&step) else { panic!("version {version} was taken") };
            assert_eq!((failure.code, client.keys().is_none()), (code, true), "{failure}");
        }
    }

    #[test]
    fn steps_survive_their_frames() {
        let (_, hello) = greet(&RIGHT, "v");
        assert_eq!(open_step(&seal_step(&hello, None), 0, None), Ok(hello.clone()));
        assert_eq!(open_step(&seal_step(&hello, Some(&[7; 32])), 0, Some(&[7; 32])), Ok(hello.clone()));
        assert!(open_step(&seal_step(&hello, Some(&[7; 32])), 0, None).is_err());
        let request = frame::seal(&Header::new(Kind::Request, 1), &hello.to_bytes(), 0, None);
        assert!(open_step(&request, 0, None).is_err());
    }
}
