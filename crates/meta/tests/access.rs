//! The rules of owner, group and mode, as tables of cases.

use aze_meta::access::{
    NewOwner, Want, check_setattr, check_truncate, loses_search, may, may_in, may_make, mode_after_write, new_file,
    sticky_forbids,
};
use aze_meta::{AttrSet, Inode};
use aze_proto::ids::{Generation, Ino, MapEpoch, Time};
use aze_proto::{Attr, Change, Code, FileKind, Identity, SetTime, Spread, Stub};

const NOW: Time = Time(1000);

fn user(uid: u32, groups: &[u32]) -> Identity {
    Identity { uid, gid: groups[0], groups: groups[1..].to_vec() }
}

fn root() -> Identity {
    user(0, &[0])
}

/// A file of user 10, group 20.
fn file(mode: u32) -> Attr {
    Attr {
        ino: Ino(5),
        kind: FileKind::File,
        mode,
        links: 1,
        uid: 10,
        gid: 20,
        rdev: 0,
        size: 0,
        atime: Time(1),
        mtime: Time(1),
        ctime: Time(1),
        btime: Time(1),
        generation: Generation(0),
        born: MapEpoch(1),
        layout: aze_proto::place::Layout::default(),
        chunk_bits: 20,
        spread: Spread::default(),
        has_xattrs: false,
        parent: Ino(0),
    }
}

fn directory(mode: u32) -> Attr {
    Attr { kind: FileKind::Directory, ..file(mode) }
}

/// A directory of user 10, group 20.
fn stub(mode: u32) -> Stub {
    Stub {
        ino: Ino(6),
        mode,
        uid: 10,
        gid: 20,
        born: MapEpoch(1),
        chunk_bits: 20,
        acl: None,
        default_acl: None,
        is_behind: false,
        version: 1,
        mtime: Time(0),
        ctime: Time(0),
    }
}

#[test]
fn the_first_class_that_fits_decides() {
    let (owner, member, other) = (user(10, &[1]), user(11, &[1, 20]), user(12, &[1]));
    for (mode, identity, want, allowed) in [
        (0o400, &owner, Want::READ, true),
        (0o400, &owner, Want::WRITE, false),
        (0o077, &owner, Want::READ, false),
        (0o707, &member, Want::READ, false),
        (0o040, &member, Want::READ, true),
        (0o770, &other, Want::READ, false),
        (0o006, &other, Want::READ, true),
        (0o006, &other, Want { read: true, write: true, execute: false }, true),
        (0o006, &other, Want { read: true, write: true, execute: true }, false),
        (0o000, &other, Want::default(), true),
        (0o010, &user(11, &[20]), Want::SEARCH, true),
    ] {
        assert_eq!(may(identity, &Inode::of(file(mode)), want), allowed, "{mode:o} {identity:?} {want:?}");
        assert_eq!(may_in(identity, &stub(mode), want), allowed, "{mode:o} {identity:?} {want:?}");
    }
}

#[test]
fn root_may_all_but_execute_what_nobody_can() {
    assert!(may(&root(), &Inode::of(file(0)), Want { read: true, write: true, execute: false }));
    assert!(!may(&root(), &Inode::of(file(0o666)), Want::SEARCH));
    assert!(may(&root(), &Inode::of(file(0o001)), Want::SEARCH));
    assert!(may(&root(), &Inode::of(directory(0)), Want::CHANGE_NAMES));
    assert!(may_in(&root(), &stub(0), Want::CHANGE_NAMES));
}

#[test]
fn device_files_are_for_root() {
    for kind in [FileKind::CharDevice, FileKind::BlockDevice] {
        assert!(may_make(&root(), kind) && !may_make(&user(1, &[1]), kind));
    }
    assert!(may_make(&user(1, &[1]), FileKind::Fifo));
}

#[test]
fn a_new_file_belongs_to_its_maker_and_perhaps_to_the_directorys_group() {
    let maker = user(11, &[1]);
    let member = user(11, &[1, 20]);
    for (identity, dir_mode, kind, mode, expected) in [
        (&maker, 0o777, FileKind::File, 0o644, (1, 0o644)),
        (&maker, 0o777, FileKind::Directory, 0o755, (1, 0o755)),
        (&maker, 0o2777, FileKind::File, 0o644, (20, 0o644)),
        (&maker, 0o2777, FileKind::Directory, 0o755, (20, 0o2755)),
        (&maker, 0o2777, FileKind::File, 0o6755, (20, 0o4755)),
        (&member, 0o2777, FileKind::File, 0o6755, (20, 0o6755)),
        (&maker, 0o777, FileKind::Symlink, 0o600, (1, 0o777)),
        (&maker, 0o777, FileKind::File, 0o100_644, (1, 0o644)),
    ] {
        let (gid, mode_expected) = expected;
        assert_eq!(new_file(identity, &stub(dir_mode), kind, mode), NewOwner { uid: 11, gid, mode: mode_expected });
    }
    assert_eq!(new_file(&root(), &stub(0o2777), FileKind::File, 0o2755), NewOwner { uid: 0, gid: 20, mode: 0o2755 });
}

#[test]
fn in_a_sticky_directory_only_owners_remove() {
    assert!(sticky_forbids(&user(12, &[1]), &stub(0o1777), 11));
    assert!(!sticky_forbids(&user(11, &[1]), &stub(0o1777), 11));
    assert!(!sticky_forbids(&user(10, &[1]), &stub(0o1777), 11));
    assert!(!sticky_forbids(&root(), &stub(0o1777), 11));
    assert!(!sticky_forbids(&user(12, &[1]), &stub(0o777), 11));
}

#[test]
fn length_is_set_by_writers_and_only_of_files() {
    let code = |result: Result<(), aze_proto::Failure>| result.map_err(|failure| failure.code);
    assert_eq!(code(check_truncate(&user(10, &[1]), &Inode::of(file(0o200)), false)), Ok(()));
    assert_eq!(code(check_truncate(&user(10, &[1]), &Inode::of(file(0o400)), false)), Err(Code::AccessDenied));
    assert_eq!(code(check_truncate(&user(10, &[1]), &Inode::of(file(0o400)), true)), Ok(()));
    assert_eq!(code(check_truncate(&root(), &Inode::of(directory(0o777)), true)), Err(Code::IsDirectory));
    assert_eq!(
        code(check_truncate(&root(), &Inode::of(Attr { kind: FileKind::Fifo, ..file(0o777) }), true)),
        Err(Code::Invalid)
    );
}

fn set(identity: &Identity, attr: &Attr, change: Change) -> Result<AttrSet, Code> {
    check_setattr(identity, &Inode::of(attr.clone()), &change, NOW).map_err(|failure| failure.code)
}

fn mode(mode: u32) -> Change {
    Change { mode: Some(mode), ..Change::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> Change {
    Change { uid, gid, ..Change::default() }
}

#[test]
fn the_mode_is_changed_by_the_owner() {
    let mine = user(10, &[1, 20]);
    assert_eq!(set(&mine, &file(0o600), mode(0o2755)).map(|set| set.mode), Ok(Some(0o2755)));
    assert_eq!(set(&user(10, &[1]), &file(0o600), mode(0o2755)).map(|set| set.mode), Ok(Some(0o755)));
    assert_eq!(set(&user(10, &[1]), &file(0o600), mode(0o4755)).map(|set| set.mode), Ok(Some(0o4755)));
    assert_eq!(set(&root(), &file(0o600), mode(0o102_755)).map(|set| set.mode), Ok(Some(0o2755)));
    assert_eq!(set(&user(11, &[20]), &file(0o666), mode(0o777)), Err(Code::NotPermitted));
    assert_eq!(set(&root(), &Attr { kind: FileKind::Symlink, ..file(0o777) }, mode(0o600)), Err(Code::Unsupported));
}

#[test]
fn the_owner_gives_away_only_the_group_and_only_to_one_of_his() {
    let mine = user(10, &[1, 30]);
    assert_eq!(set(&mine, &file(0o600), owner(Some(11), None)), Err(Code::NotPermitted));
    assert_eq!(set(&mine, &file(0o600), owner(None, Some(40))), Err(Code::NotPermitted));
    assert_eq!(
        set(&mine, &file(0o600), owner(Some(10), Some(30))).map(|set| (set.uid, set.gid)),
        Ok((Some(10), Some(30)))
    );
    assert_eq!(set(&mine, &file(0o600), owner(None, Some(20))).map(|set| set.gid), Ok(Some(20)));
    assert_eq!(set(&user(11, &[30]), &file(0o600), owner(None, Some(30))), Err(Code::NotPermitted));
    assert_eq!(set(&root(), &file(0o755), owner(Some(1), Some(2))).map(|set| set.mode), Ok(None));
}

#[test]
fn set_id_bits_do_not_outlive_the_ownership() {
    let mine = user(10, &[1, 30]);
    assert_eq!(set(&mine, &file(0o6755), owner(None, Some(30))).map(|set| set.mode), Ok(Some(0o755)));
    assert_eq!(set(&mine, &file(0o755), owner(None, Some(30))).map(|set| set.mode), Ok(None));
    assert_eq!(set(&mine, &directory(0o2755), owner(None, Some(30))).map(|set| set.mode), Ok(None));
    let both = Change { mode: Some(0o6777), gid: Some(30), ..Change::default() };
    assert_eq!(set(&mine, &file(0o6755), both).map(|set| set.mode), Ok(Some(0o777)));
    // Root is treated as others are: chown(2).
    assert_eq!(set(&root(), &file(0o6755), owner(Some(1), Some(2))).map(|set| set.mode), Ok(Some(0o755)));
    assert_eq!(set(&root(), &file(0o6644), owner(Some(1), None)).map(|set| set.mode), Ok(Some(0o2644)));
}

/// On a mount a write to a set-user-id file by a user who was allowed to write it failed with
/// EPERM, because the kernel asked for the new mode in the writer's name, who may not set it; an
/// append left the bits as they were.
#[test]
fn set_id_bits_go_when_somebody_else_writes() {
    let writer = user(12, &[1]);
    assert_eq!(mode_after_write(&writer, &file(0o6777)), Some(0o777));
    assert_eq!(mode_after_write(&user(10, &[1]), &file(0o4755)), Some(0o755), "the owner too");
    assert_eq!(mode_after_write(&writer, &file(0o2666)), Some(0o666));
    assert_eq!(mode_after_write(&user(12, &[20]), &file(0o2666)), None, "no program, and of the group");
    assert_eq!(mode_after_write(&writer, &file(0o777)), None);
    assert_eq!(mode_after_write(&root(), &file(0o6777)), None);
    assert_eq!(mode_after_write(&writer, &directory(0o2777)), None);
}

#[test]
fn times_are_set_by_the_owner_and_touched_by_writers() {
    let to = Some(SetTime::To { time: Time(7) });
    let now = Some(SetTime::Now);
    let times = |atime, mtime| Change { atime, mtime, ..Change::default() };
    let writer = user(12, &[1]);
    let resolved = set(&user(10, &[1]), &file(0), times(to, now)).expect("the owner may");
    assert_eq!((resolved.atime, resolved.mtime), (Some(Time(7)), Some(NOW)));
    assert_eq!(set(&writer, &file(0o602), times(now, now)).map(|set| set.mtime), Ok(Some(NOW)));
    assert_eq!(set(&writer, &file(0o604), times(now, now)), Err(Code::AccessDenied));
    assert_eq!(set(&writer, &file(0o602), times(now, to)), Err(Code::NotPermitted));
    assert_eq!(set(&writer, &file(0o602), times(None, now)), Err(Code::NotPermitted));
    assert_eq!(set(&root(), &file(0), times(to, to)).map(|set| set.atime), Ok(Some(Time(7))));
}

#[test]
fn nothing_to_change_is_allowed_to_anybody() {
    assert_eq!(set(&user(12, &[1]), &file(0), Change::default()), Ok(AttrSet::default()));
}

#[test]
fn rights_to_search_are_lost_with_bits_or_owners() {
    let before = directory(0o751);
    for (after, loses) in [
        (directory(0o751), false),
        (directory(0o755), false),
        (directory(0o111), false),
        (directory(0o750), true),
        (Attr { uid: 11, ..directory(0o751) }, true),
        (Attr { gid: 21, ..directory(0o751) }, true),
    ] {
        assert_eq!(loses_search(&before, &after), loses, "{after:?}");
    }
}
