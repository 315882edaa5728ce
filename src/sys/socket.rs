//! Unix sockets that carry descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{check, retry_interrupted};

/// Descriptors that one message may carry.
pub const MAX_DESCRIPTORS: usize = 16;

/// Whether a call may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until it can be done.
    Blocking,
    /// Not at all: it fails with [`io::ErrorKind::WouldBlock`]. Only this call is meant; the open
    /// file, which others may share, keeps its mode.
    Never,
}

/// What a message brought.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes written to the start of the buffer. 0 on a stream means that the peer has closed it.
    pub bytes: usize,
    /// Descriptors that came with them, each close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// A kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `SOCK_STREAM`.
    Stream,
    /// `SOCK_DGRAM`.
    Datagram,
    /// `SOCK_SEQPACKET`.
    Packets,
}

impl Kind {
    fn as_raw(self) -> libc::c_int {
        match self {
            Self::Stream => libc::SOCK_STREAM,
            Self::Datagram => libc::SOCK_DGRAM,
            Self::Packets => libc::SOCK_SEQPACKET,
        }
    }
}

/// Makes a connected pair of Unix sockets, both close-on-exec.
pub fn pair(kind: Kind) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    let kind = kind.as_raw() | libc::SOCK_CLOEXEC;
    // SAFETY: `fds` is writable and has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: socketpair succeeded, so this descriptor is open and ours alone.
    let first = unsafe { OwnedFd::from_raw_fd(fds[0]) };
    // SAFETY: as for the first.
    let second = unsafe { OwnedFd::from_raw_fd(fds[1]) };
    Ok((first, second))
}

/// Whether `fd` is a Unix socket of this kind. Touches nothing of what it may be instead.
pub fn is_unix_socket(fd: BorrowedFd<'_>, kind: Kind) -> bool {
    socket_option(fd, libc::SO_DOMAIN).is_ok_and(|domain: libc::c_int| domain == libc::AF_UNIX)
        && socket_option(fd, libc::SO_TYPE).is_ok_and(|found: libc::c_int| found == kind.as_raw())
}

/// Reads a fixed-size option at level `SOL_SOCKET`.
pub(super) fn socket_option<T: Copy>(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    #[allow(
        clippy::cast_possible_truncation,
        reason = "options are a few bytes long"
    )]
    let size = size_of::<T>() as libc::socklen_t;
    let mut length = size;
    // SAFETY: `value` is writable for `length` bytes, and `length` is writable.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    if length != size {
        return Err(io::Error::other("a socket option has another size"));
    }
    // SAFETY: the kernel wrote all of it, and the callers' types are plain integers.
    Ok(unsafe { value.assume_init() })
}

/// Room for the control message of [`MAX_DESCRIPTORS`] descriptors, and for no more: the kernel
/// closes what doesn't fit, and says so with `MSG_CTRUNC`.
const CONTROL_BYTES: usize =
    // SAFETY: CMSG_SPACE only computes.
    unsafe { libc::CMSG_SPACE(DESCRIPTOR_BYTES) as usize };

#[allow(clippy::cast_possible_truncation, reason = "64 bytes")]
const DESCRIPTOR_BYTES: libc::c_uint = (MAX_DESCRIPTORS * size_of::<RawFd>()) as libc::c_uint;

#[repr(align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Sends bytes, and with the first of them `descriptors`. Returns how many bytes went out; on a
/// datagram or packet socket all or none. Never raises `SIGPIPE`.
///
/// # Errors
/// More than [`MAX_DESCRIPTORS`] descriptors, or whatever `sendmsg(2)` says.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: Wait,
) -> io::Result<usize> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{} descriptors, and a message carries at most {MAX_DESCRIPTORS}",
                descriptors.len()
            ),
        ));
    }
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !descriptors.is_empty() {
        #[allow(clippy::cast_possible_truncation, reason = "at most 64 bytes")]
        let payload = size_of_val(descriptors) as libc::c_uint;
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as _;
        // SAFETY: the header's control buffer is aligned and large enough for one message.
        let message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        // SAFETY: CMSG_LEN only computes.
        let length = unsafe { libc::CMSG_LEN(payload) };
        // SAFETY: `message` points into `control`, which nothing else borrows now.
        unsafe {
            *message = libc::cmsghdr {
                cmsg_len: length as _,
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            };
        }
        // SAFETY: CMSG_DATA only computes.
        let data = unsafe { libc::CMSG_DATA(message) };
        // SAFETY: BorrowedFd is a transparent RawFd; the message has room for `payload` bytes, and
        // the two don't overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(
                descriptors.as_ptr().cast::<u8>(),
                data,
                payload as usize,
            );
        }
    }
    let mut flags = libc::MSG_NOSIGNAL;
    if wait == Wait::Never {
        flags |= libc::MSG_DONTWAIT;
    }
    let sent = retry_interrupted(|| {
        // SAFETY: the header points to buffers that live until the call returns.
        check(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) })
    })?;
    Ok(usize::try_from(sent).unwrap_or(0))
}

/// Receives bytes and the descriptors that came with them.
///
/// # Errors
/// Whatever `recvmsg(2)` says; [`io::ErrorKind::InvalidData`] where the message carried more
/// descriptors than [`MAX_DESCRIPTORS`], and [`io::ErrorKind::QuotaExceeded`] where this process may
/// have no more of them (all that came are closed then).
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: Wait) -> io::Result<Received> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    let mut flags = libc::MSG_CMSG_CLOEXEC;
    if wait == Wait::Never {
        flags |= libc::MSG_DONTWAIT;
    }
    let bytes = retry_interrupted(|| {
        // SAFETY: the header points to buffers that live until the call returns.
        check(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })
    })?;
    // Own them first: whatever is wrong with the message, they get closed.
    let descriptors = take_descriptors(&header);
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        // The kernel says by the same flag that it could install no more.
        return Err(if descriptors.len() < MAX_DESCRIPTORS {
            io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "the descriptors of a message can't be taken: the limit on open files (ulimit -n) is reached",
            )
        } else {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a message carries more than {MAX_DESCRIPTORS} descriptors"),
            )
        });
    }
    Ok(Received {
        bytes: usize::try_from(bytes).unwrap_or(0),
        descriptors,
    })
}

fn take_descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel filled in the header and its control buffer.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(std::ptr::from_ref(header)) };
    while !message.is_null() {
        // SAFETY: not null, so it points to a whole control message in the buffer.
        let found = unsafe { *message };
        if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (found.cmsg_len as usize).saturating_sub(empty) / size_of::<RawFd>();
            // SAFETY: CMSG_DATA only computes.
            let data = unsafe { libc::CMSG_DATA(message) };
            for index in 0..count {
                // SAFETY: `index` is below the number of descriptors in this message.
                let place = unsafe { data.add(index * size_of::<RawFd>()) };
                let mut fd = [0; size_of::<RawFd>()];
                // SAFETY: the place holds one descriptor; the two don't overlap.
                unsafe { std::ptr::copy_nonoverlapping(place, fd.as_mut_ptr(), fd.len()) };
                let fd = RawFd::from_ne_bytes(fd);
                // SAFETY: the kernel has just installed it for us, and nobody else knows it.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: both pointers belong to the same, unchanged header.
        message = unsafe { libc::CMSG_NXTHDR(std::ptr::from_ref(header), message) };
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::descriptor;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_arrive_owned_and_close_on_exec() {
        let (left, right) = pair(Kind::Stream).unwrap();
        let (one, two) = pair(Kind::Stream).unwrap();
        send(
            left.as_fd(),
            b"x",
            &[one.as_fd(), two.as_fd()],
            Wait::Blocking,
        )
        .unwrap();
        let mut buffer = [0; 8];
        let received = receive(right.as_fd(), &mut buffer, Wait::Blocking).unwrap();
        assert_eq!(received.bytes, 1);
        assert_eq!(received.descriptors.len(), 2);
        for fd in &received.descriptors {
            assert!(descriptor::is_close_on_exec(fd.as_fd()).unwrap());
        }
    }

    #[test]
    fn sixteen_descriptors_arrive_and_seventeen_are_refused() {
        let (left, right) = pair(Kind::Stream).unwrap();
        let fds = vec![left.as_fd(); MAX_DESCRIPTORS];
        send(left.as_fd(), b"x", &fds, Wait::Blocking).unwrap();
        let mut buffer = [0; 8];
        let received = receive(right.as_fd(), &mut buffer, Wait::Blocking).unwrap();
        assert_eq!(received.descriptors.len(), MAX_DESCRIPTORS);
        let fds = vec![left.as_fd(); MAX_DESCRIPTORS + 1];
        let error = send(left.as_fd(), b"x", &fds, Wait::Blocking).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// One more than `send` sends.
    fn send_too_many(socket: BorrowedFd<'_>) {
        const COUNT: usize = MAX_DESCRIPTORS + 1;
        #[allow(clippy::cast_possible_truncation, reason = "68 bytes")]
        const BYTES: libc::c_uint = (COUNT * size_of::<RawFd>()) as libc::c_uint;
        #[repr(align(8))]
        struct Room([u8; 256]);
        let mut part = libc::iovec {
            iov_base: b"x".as_ptr().cast_mut().cast(),
            iov_len: 1,
        };
        let mut room = Room([0; 256]);
        // SAFETY: all zeroes is a valid msghdr.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = room.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(BYTES) } as _;
        // SAFETY: the control buffer is aligned and larger than that.
        let message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        // SAFETY: CMSG_LEN only computes.
        let length = unsafe { libc::CMSG_LEN(BYTES) };
        // SAFETY: `message` points into `room`.
        unsafe {
            *message = libc::cmsghdr {
                cmsg_len: length as _,
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            };
        }
        // SAFETY: CMSG_DATA only computes.
        let data = unsafe { libc::CMSG_DATA(message) };
        let fds = [socket.as_raw_fd(); COUNT];
        // SAFETY: the message has room for all of them, and the two don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), data, BYTES as usize) };
        // SAFETY: the header points to buffers that live until the call returns.
        check(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) }).unwrap();
    }

    #[test]
    fn too_many_descriptors_are_told_from_too_few_places_for_them() {
        let (left, right) = pair(Kind::Stream).unwrap();
        send_too_many(left.as_fd());
        let error = receive(right.as_fd(), &mut [0; 8], Wait::Blocking).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(
            error.to_string(),
            "a message carries more than 16 descriptors"
        );

        send(left.as_fd(), b"x", &[left.as_fd(); 2], Wait::Blocking).unwrap();
        let error = std::thread::spawn(move || {
            // SAFETY: takes an integer; from here on this thread alone has the descriptors that it opens.
            check(unsafe { libc::unshare(libc::CLONE_FILES) }).unwrap();
            let mut all = Vec::new();
            while let Ok(copy) = right.try_clone() {
                all.push(copy);
            }
            all.pop();
            receive(right.as_fd(), &mut [0; 8], Wait::Blocking).unwrap_err()
        })
        .join()
        .unwrap();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    }

    #[test]
    fn waiting_never_leaves_the_open_file_as_it_was() {
        let (left, _right) = pair(Kind::Stream).unwrap();
        let mut buffer = [0; 8];
        let error = receive(left.as_fd(), &mut buffer, Wait::Never).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(!descriptor::is_nonblocking(left.as_fd()).unwrap());
    }

    #[test]
    fn a_pipe_is_no_socket() {
        let (reader, _writer) = io::pipe().unwrap();
        assert!(!is_unix_socket(reader.as_fd(), Kind::Datagram));
        let (left, _right) = pair(Kind::Datagram).unwrap();
        assert!(is_unix_socket(left.as_fd(), Kind::Datagram));
        assert!(!is_unix_socket(left.as_fd(), Kind::Stream));
    }
}
