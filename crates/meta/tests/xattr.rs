//! Extended attributes and access control lists: who may do what, and what the lists mean.

use aze_meta::access::{Want, may, may_in};
use aze_meta::xattr::{check_set, get, list};
use aze_meta::{EntryKey, Inode, NewFile, Op, Shard, Stamp, acl};
use aze_proto::ids::{Ino, MapEpoch, ShardId, Time};
use aze_proto::limits::{XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX};
use aze_proto::wire::Blob;
use aze_proto::{Code, FileKind, Identity, Name, Stub, XattrHow};

const OWNER: u32 = 10;
const GROUP: u32 = 20;

fn user(uid: u32, gid: u32) -> Identity {
    Identity { uid, gid, groups: Vec::new() }
}

fn root() -> Identity {
    user(0, 0)
}

/// A shard with one file of user 10, group 20.
fn made(kind: FileKind, mode: u32) -> (Shard, Ino) {
    let mut shard = Shard::new(ShardId(0), 1);
    let key = EntryKey::new(Ino::ROOT, Name::new(b"a").expect("a name"));
    let (target, born) = (Blob(b"t".to_vec()), MapEpoch(1));
    let new = NewFile {
        kind,
        mode,
        uid: OWNER,
        gid: GROUP,
        rdev: 0,
        target,
        born,
        chunk_bits: 20,
        layout: aze_proto::place::Layout::default(),
        private: false,
        over_backing: false,
    };
    let attr = shard.apply(&Op::Create { key, new, exclusive: true }, &Stamp::at(Time(1))).effects.attr;
    let ino = attr.expect("made").ino;
    (shard, ino)
}

fn inode(kind: FileKind, mode: u32) -> Inode {
    let (shard, ino) = made(kind, mode);
    shard.inode(ino).expect("made").clone()
}

fn set(shard: &mut Shard, ino: Ino, name: &[u8], value: Option<&[u8]>, how: XattrHow) -> Result<(), Code> {
    set_as(&root(), shard, ino, name, value, how)
}

fn set_as(
    who: &Identity,
    shard: &mut Shard,
    ino: Ino,
    name: &[u8],
    value: Option<&[u8]>,
    how: XattrHow,
) -> Result<(), Code> {
    let value = value.map(|value| Blob(value.to_vec()));
    let inode = shard.inode(ino).expect("it is there");
    let set = check_set(who, inode, name, value.as_ref()).map_err(|failure| failure.code)?;
    let name = Blob(name.to_vec());
    let op = Op::SetXattr { ino, name, value: set.value, mode: set.mode, if_any: set.if_any, how };
    shard.apply(&op, &Stamp::at(Time(2))).reply.map(drop).map_err(|failure| failure.code)
}

#[test]
fn creating_replacing_and_removing_are_told_apart() {
    let (mut shard, ino) = made(FileKind::File, 0o600);
    let name = b"user.a";
    assert_eq!(set(&mut shard, ino, name, Some(b"1"), XattrHow::Replace), Err(Code::NoAttribute));
    assert_eq!(set(&mut shard, ino, name, None, XattrHow::Any), Err(Code::NoAttribute));
    assert_eq!(set(&mut shard, ino, name, Some(b"1"), XattrHow::Create), Ok(()));
    assert_eq!(set(&mut shard, ino, name, Some(b"2"), XattrHow::Create), Err(Code::Exists));
    assert_eq!(set(&mut shard, ino, name, Some(b"3"), XattrHow::Replace), Ok(()));
    let inode = shard.inode(ino).expect("made");
    assert_eq!(get(&root(), inode, name), Ok(Blob(b"3".to_vec())));
    assert_eq!(inode.attr.ctime, Time(2));
    assert_eq!(set(&mut shard, ino, name, None, XattrHow::Any), Ok(()));
    assert_eq!(shard.inode(ino).map(|inode| list(&root(), inode)), Some(Vec::new()));
}

#[test]
fn namespaces_have_their_rules() {
    let (owner, other) = (user(OWNER, GROUP), user(11, 21));
    let value = Blob(b"v".to_vec());
    let code = |who: &Identity, inode: &Inode, name: &[u8]| {
        check_set(who, inode, name, Some(&value)).map(drop).map_err(|failure| failure.code)
    };
    let file = inode(FileKind::File, 0o640);
    let link = inode(FileKind::Symlink, 0o777);
    let sticky = inode(FileKind::Directory, 0o1777);
    for (who, inode, name, expected) in [
        (&owner, &file, &b"user.a"[..], Ok(())),
        (&other, &file, b"user.a", Err(Code::AccessDenied)),
        (&owner, &link, b"user.a", Err(Code::NotPermitted)),
        (&root(), &link, b"trusted.a", Ok(())),
        (&other, &sticky, b"user.a", Err(Code::NotPermitted)),
        (&owner, &sticky, b"user.a", Ok(())),
        (&owner, &file, b"trusted.a", Err(Code::NotPermitted)),
        (&owner, &file, b"security.a", Err(Code::NotPermitted)),
        (&root(), &file, b"security.a", Ok(())),
        (&root(), &file, b"system.a", Err(Code::Unsupported)),
        (&root(), &file, b"user.", Err(Code::Unsupported)),
        (&root(), &file, b"plain", Err(Code::Unsupported)),
        (&root(), &file, b"", Err(Code::OutOfRange)),
    ] {
        assert_eq!(code(who, inode, name), expected, "{} by {}", name.escape_ascii(), who.uid);
    }
    let reading = |who: &Identity, inode: &Inode, name: &[u8]| get(who, inode, name).map_err(|failure| failure.code);
    let (mut shard, ino) = made(FileKind::File, 0o640);
    set(&mut shard, ino, b"trusted.t", Some(b"t"), XattrHow::Any).expect("root may");
    set(&mut shard, ino, b"security.s", Some(b"s"), XattrHow::Any).expect("root may");
    set(&mut shard, ino, b"user.u", Some(b"u"), XattrHow::Any).expect("root may");
    let file = shard.inode(ino).expect("made");
    assert_eq!(reading(&owner, file, b"trusted.t"), Err(Code::NoAttribute));
    assert_eq!(reading(&root(), file, b"trusted.t"), Ok(Blob(b"t".to_vec())));
    assert_eq!(reading(&other, file, b"security.s"), Ok(Blob(b"s".to_vec())));
    assert_eq!(reading(&other, file, b"user.u"), Err(Code::AccessDenied));
    let names = |who: &Identity| list(who, file).into_iter().map(|name| name.0).collect::<Vec<_>>();
    assert_eq!(names(&owner), [b"security.s".to_vec(), b"user.u".to_vec()]);
    assert_eq!(names(&root()).len(), 3);
}

#[test]
fn limits_are_errors() {
    let (mut shard, ino) = made(FileKind::File, 0o600);
    let long = [&b"user."[..], &[b'x'; XATTR_NAME_BYTES_MAX - 5]].concat();
    let any = XattrHow::Any;
    assert_eq!(set(&mut shard, ino, &long, Some(b""), any), Ok(()));
    assert_eq!(set(&mut shard, ino, &[&long[..], b"x"].concat(), Some(b""), any), Err(Code::OutOfRange));
    assert_eq!(set(&mut shard, ino, b"user.a", Some(&[0; XATTR_VALUE_BYTES_MAX + 1]), any), Err(Code::Limit));
    let most = XATTRS_BYTES_MAX / XATTR_VALUE_BYTES_MAX;
    for index in 0..most {
        let fits = if index + 1 < most { Ok(()) } else { Err(Code::NoSpace) };
        let name = format!("user.{index}");
        assert_eq!(set(&mut shard, ino, name.as_bytes(), Some(&[0; XATTR_VALUE_BYTES_MAX]), any), fits);
    }
    let (mut shard, ino) = made(FileKind::File, 0o600);
    let name = |index: usize| format!("user.{index:0>240}").into_bytes();
    let most = XATTR_LIST_BYTES_MAX / (name(0).len() + 1);
    for index in 0..most {
        assert_eq!(set(&mut shard, ino, &name(index), Some(b""), any), Ok(()));
    }
    assert_eq!(set(&mut shard, ino, &name(most), Some(b""), any), Err(Code::NoSpace));
    assert_eq!(set(&mut shard, ino, &name(0), Some(b"more"), any), Ok(()));
}

const NOBODY: u32 = u32::MAX;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The owner rw-, user 11 rwx, the group r--, group 30 -w-, the mask rw-, others ---.
fn sample() -> Vec<u8> {
    acl(&[(1, 6, NOBODY), (2, 7, 11), (4, 4, NOBODY), (8, 2, 30), (16, 6, NOBODY), (32, 0, NOBODY)])
}

#[test]
fn a_list_decides_as_in_acl_5() {
    let (mut shard, ino) = made(FileKind::File, 0o600);
    set(&mut shard, ino, acl::ACCESS, Some(&sample()), XattrHow::Any).expect("a valid list");
    let inode = shard.inode(ino).expect("made");
    assert_eq!(inode.attr.mode, 0o660, "the group bits show the mask");
    let both = Want { read: true, write: true, execute: false };
    let in_groups = |groups: &[u32]| Identity { uid: 12, gid: 1, groups: groups.to_vec() };
    for (who, want, allowed) in [
        (user(OWNER, 1), both, true),
        (user(OWNER, 1), Want::SEARCH, false),
        (user(11, 1), both, true),
        (user(11, 1), Want::SEARCH, false),
        (user(11, GROUP), both, true),
        (in_groups(&[GROUP]), Want::READ, true),
        (in_groups(&[GROUP]), Want::WRITE, false),
        (in_groups(&[30]), Want::WRITE, true),
        (in_groups(&[30]), Want::READ, false),
        (in_groups(&[GROUP, 30]), Want::WRITE, true),
        (in_groups(&[GROUP, 30]), both, false),
        (in_groups(&[]), Want::READ, false),
        (root(), both, true),
    ] {
        assert_eq!(may(&who, inode, want), allowed, "{who:?} {want:?}");
        let (list, version) = (Some(Blob(sample())), 1);
        let stub = Stub {
            ino,
            mode: 0o660,
            uid: OWNER,
            gid: GROUP,
            born: MapEpoch(1),
            chunk_bits: 20,
            acl: list,
            default_acl: None,
            is_behind: false,
            version,
            mtime: Time(0),
            ctime: Time(0),
        };
        assert_eq!(may_in(&who, &stub, want), allowed || who.is_root(), "in a directory: {who:?} {want:?}");
    }
}

#[test]
fn chmod_changes_the_mask_and_a_short_list_is_only_a_mode() {
    let (mut shard, ino) = made(FileKind::File, 0o4600);
    set(&mut shard, ino, acl::ACCESS, Some(&sample()), XattrHow::Any).expect("a valid list");
    let change = aze_meta::AttrSet { mode: Some(0o640), ..Default::default() };
    shard.apply(&Op::SetAttr { ino, set: change }, &Stamp::at(Time(3))).reply.expect("done");
    let inode = shard.inode(ino).expect("made");
    let expected = acl(&[(1, 6, NOBODY), (2, 7, 11), (4, 4, NOBODY), (8, 2, 30), (16, 4, NOBODY), (32, 0, NOBODY)]);
    assert_eq!(inode.xattr(acl::ACCESS), Some(&Blob(expected)));
    assert!(!may(&user(11, 1), inode, Want::WRITE), "the mask does not give it");
    let short = acl(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 1, NOBODY)]);
    set(&mut shard, ino, acl::ACCESS, Some(&short), XattrHow::Any).expect("a valid list");
    let inode = shard.inode(ino).expect("made");
    assert_eq!((inode.attr.mode, inode.xattr(acl::ACCESS)), (0o751, None));
    set(&mut shard, ino, acl::ACCESS, None, XattrHow::Any).expect("what is not there can be removed");
}

#[test]
fn what_is_no_list_is_refused() {
    let (mut shard, ino) = made(FileKind::File, 0o600);
    let mut code = |name: &[u8], bytes: &[u8]| set(&mut shard, ino, name, Some(bytes), XattrHow::Any);
    let obj = |tag| (tag, 4, NOBODY);
    assert_eq!(code(acl::ACCESS, &1u32.to_le_bytes()), Err(Code::Unsupported));
    for entries in [
        &[obj(1), obj(4)][..],
        &[obj(4), obj(1), obj(32)],
        &[obj(1), obj(1), obj(4), obj(32)],
        &[obj(1), (2, 4, 11), obj(4), obj(32)],
        &[obj(1), (2, 4, NOBODY), obj(4), obj(16), obj(32)],
        &[obj(1), obj(4), (32, 8, NOBODY)],
        &[obj(1), obj(4), obj(32), obj(64)],
    ] {
        assert_eq!(code(acl::ACCESS, &acl(entries)), Err(Code::Invalid), "{entries:?}");
    }
    assert_eq!(code(acl::ACCESS, &sample()[..10]), Err(Code::Invalid));
    assert_eq!(code(acl::DEFAULT, &sample()), Err(Code::AccessDenied), "only directories have one");
    let other = user(11, 1);
    assert_eq!(set_as(&other, &mut shard, ino, acl::ACCESS, Some(&sample()), XattrHow::Any), Err(Code::NotPermitted));
}

#[test]
fn new_files_take_the_default_list_and_no_umask() {
    let default = Blob(sample());
    // rw-rw-rw- under a umask of 022: the umask is told apart, and does not count.
    let asked = 0o644 | 0o022 << 16;
    let file = acl::inherited(Some(&default), FileKind::File, asked);
    let expected = acl(&[(1, 6, NOBODY), (2, 7, 11), (4, 4, NOBODY), (8, 2, 30), (16, 6, NOBODY), (32, 0, NOBODY)]);
    assert_eq!((file.mode, file.xattrs.len()), (0o660, 1));
    assert_eq!((file.xattrs[0].name.0.as_slice(), &file.xattrs[0].value), (acl::ACCESS, &Blob(expected)));
    let narrow = acl::inherited(Some(&default), FileKind::File, 0o400);
    assert_eq!(narrow.mode, 0o400);
    let dir = acl::inherited(Some(&default), FileKind::Directory, 0o1777);
    assert_eq!((dir.mode, dir.xattrs.len()), (0o1660, 2));
    assert_eq!((dir.xattrs[1].name.0.as_slice(), &dir.xattrs[1].value), (acl::DEFAULT, &default));
    let link = acl::inherited(Some(&default), FileKind::Symlink, 0o777);
    assert_eq!((link.mode, link.xattrs.len()), (0o777, 0));
    assert_eq!(acl::inherited(None, FileKind::File, asked).mode, 0o644);
    let short = Blob(acl(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 0, NOBODY)]));
    let plain = acl::inherited(Some(&short), FileKind::File, 0o666);
    assert_eq!((plain.mode, plain.xattrs.len()), (0o640, 0));
}
