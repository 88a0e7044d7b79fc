//! What a member stores, and bytes that are not that.

use aze_keeper::{Group, MemberId};

/// What a member has stored that has proposed something, which is not decided yet.
fn stored() -> Vec<u8> {
    let members = [1, 2, 3].map(MemberId);
    let mut groups = members.map(|me| Group::found(me, &members, b"first".to_vec()));
    groups[0].campaign();
    let mut stored = Vec::new();
    let mut wire = Vec::new();
    for _ in 0..10 {
        for group in &mut groups {
            while let Some(work) = group.work() {
                wire.extend(work.messages);
            }
        }
        for (to, message) in std::mem::take(&mut wire) {
            groups[to.0 as usize - 1].receive(&message);
        }
    }
    assert!(groups[0].leads());
    groups[0].propose(b"second".to_vec()).expect("it leads");
    while let Some(work) = groups[0].work() {
        stored = work.stored.unwrap_or(stored);
    }
    stored
}

#[test]
fn a_member_goes_on_with_what_it_has_stored() {
    let group = Group::restored(&stored()).expect("it is what was stored");
    assert_eq!((group.me(), group.members()), (MemberId(1), [1, 2, 3].map(MemberId).to_vec()));
    assert_eq!((group.value(), group.agreed()), (b"first".as_slice(), b"second".as_slice()));
    // The founders' entry, that of the new leader, and the proposal.
    assert_eq!(group.reached(), (2, 3));
    assert!(!group.leads(), "who was started again does not lead");
}

#[test]
fn bytes_that_nobody_has_stored_are_refused() {
    let whole = stored();
    assert!(whole.len() > 60);
    let refused = |bytes: &[u8]| Group::restored(bytes).map(|_| ()).expect_err("it is refused").to_string();
    assert!(refused(&[]).contains("it is empty"));
    assert!(refused(&[2]).contains("its layout is 2"));
    // Without its last entry the promises are still kept; within a part it is not whole.
    let accepted = (1..whole.len()).filter(|length| Group::restored(&whole[..*length]).is_ok()).count();
    assert!(accepted <= 2, "{accepted} shorter forms are accepted");
    let mut nameless = whole.clone();
    nameless[1..9].fill(0);
    assert!(refused(&nameless).contains("no number"));
    // No bit makes it panic; a checksum is for the room that writes it to a disk.
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let _ = Group::restored(&flipped);
    }
}
