"""Which kind of file system a file lies on, from /proc/self/mountinfo. Pure."""

# What reads over a network, where one reader after the other leaves most of the link idle.
NETWORK_KINDS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "afs", "9p", "virtiofs"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.juicefs", "fuse.goofys"),
    }
)


def kind_of_device(mountinfo: str, *, major: int, minor: int) -> str:
    """The file system's kind by the device number of a file on it; empty if no mount has it.

    Lines: `36 35 98:0 /root /mount options - kind source options`, with optional fields before the dash.
    """
    wanted = f"{major}:{minor}"
    for line in mountinfo.splitlines():
        mount, dash, source = line.partition(" - ")
        fields = mount.split()
        if dash and len(fields) > 2 and fields[2] == wanted:
            return source.split()[0]
    return ""
