//! On whose behalf this process asks.

use aze_io::real::own_ids;
use aze_proto::attr::Identity;
use aze_proto::limits::GROUPS_MAX;

/// User and groups of this process, as servers take them.
pub fn own_identity() -> Identity {
    let (uid, gid, mut groups) = own_ids();
    groups.truncate(GROUPS_MAX);
    Identity { uid, gid, groups }
}
