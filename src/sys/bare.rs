//! A process without a C library: its start, its memory, and the functions that the compiler takes for
//! granted.
//!
//! A statically linked C library asks the processor for its features and caches at every start, by an
//! instruction that traps where the processor is virtual: most of what a small program's exec costs there. The
//! wrapper needs nothing of that. The process has one thread.

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "the start without a C library is written for x86-64 alone: build the wrapper with `--features std` here"
);

use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::panic::PanicInfo;
use core::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

use super::entry::{self, Vector};

// The kernel enters here, with the arguments' count at the top of the stack (System V ABI, x86-64
// supplement, 3.4.1). The stack has to be aligned for a call.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {start}",
    "ud2",
    start = sym start,
);

unsafe extern "C" {
    /// What [`raw_main`](crate::raw_main) makes.
    fn main(
        count: c_int,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
}

/// Calls `main` with what is on the stack: the arguments' count and null-terminated array, and behind that the
/// environment's.
///
/// # Safety
/// `stack` is what the kernel set up.
unsafe extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: the count is there.
    let count = unsafe { *stack };
    // SAFETY: the arguments follow it.
    let arguments = unsafe { stack.add(1) }.cast();
    // SAFETY: the environment follows their terminator.
    let environment = unsafe { stack.add(count + 2) }.cast();
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    // SAFETY: both are null-terminated arrays of strings that nothing changes.
    exit(unsafe { main(count, arguments, environment) })
}

/// A system call of up to three arguments.
///
/// # Safety
/// As the call's.
unsafe fn system_call(number: usize, arguments: [usize; 3]) -> isize {
    let result;
    let [first, second, third] = arguments;
    // SAFETY: the kernel changes only these registers, and of memory what the caller answers for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

fn exit(status: c_int) -> ! {
    const EXIT_GROUP: usize = 231;
    loop {
        #[allow(clippy::cast_sign_loss, reason = "the kernel takes the low bits")]
        // SAFETY: one integer.
        unsafe {
            system_call(EXIT_GROUP, [status as usize, 0, 0])
        };
    }
}

/// `execve(2)`.
pub(super) fn execute(file: &CStr, arguments: Vector, environment: Vector) -> Errno {
    const EXECVE: usize = 59;
    let parameters = [
        file.as_ptr().expose_provenance(),
        arguments.as_ptr().expose_provenance(),
        environment.as_ptr().expose_provenance(),
    ];
    // SAFETY: a string and two null-terminated arrays of strings, by their types.
    let result = unsafe { system_call(EXECVE, parameters) };
    // It returns only where it failed.
    Errno::from_raw_os_error(i32::try_from(-result).unwrap_or_default())
}

/// Ends as for any other failure: nothing is run.
#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    if let Ok(standard_error) = entry::inherited(2) {
        let _ = rustix::io::write(
            standard_error,
            b"execgate: the wrapper failed for want of memory, or by an error of its own (nothing was run)\n",
        );
    }
    exit(125)
}

/// Memory from the kernel, handed out from its beginning to its end: the process ends, or becomes another,
/// before it would be worth while to take any back but the last.
struct Heap(UnsafeCell<Space>);

struct Space {
    /// Where the next block begins.
    next: usize,
    /// Where the space ends.
    end: usize,
}

// SAFETY: the process has one thread.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(Space { next: 0, end: 0 }));

/// How much is asked of the kernel at a time, in bytes: the command's own limits hold for the wrapper too. Blocks of
/// this size and more have pages of their own, which the kernel can move.
const LARGE: usize = 16 << 10;

fn map(size: usize) -> *mut u8 {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses where.
    unsafe { mmap_anonymous(ptr::null_mut(), size, protection, flags) }
        .map_or(ptr::null_mut(), <*mut _>::cast)
}

// SAFETY: blocks don't overlap, for each begins where the last ended, and have the size and alignment that was
// asked for; pages are aligned for anything.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE {
            return map(layout.size());
        }
        // SAFETY: one thread, and no reference to the space outlives a call.
        let space = unsafe { &mut *self.0.get() };
        let mut begin = space.next.next_multiple_of(layout.align());
        if begin + layout.size() > space.end {
            let pages = map(LARGE);
            if pages.is_null() {
                return pages;
            }
            begin = pages.expose_provenance();
            space.end = begin + LARGE;
        }
        space.next = begin + layout.size();
        ptr::with_exposed_provenance_mut(begin)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() >= LARGE {
            // SAFETY: the block has pages of its own, and is nobody's any more.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
            return;
        }
        // SAFETY: as above.
        let space = unsafe { &mut *self.0.get() };
        if block.addr() + layout.size() == space.next {
            space.next = block.addr();
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() >= LARGE && size >= LARGE {
            // SAFETY: the block has pages of its own.
            return unsafe { mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE) }
                .map_or(ptr::null_mut(), <*mut _>::cast);
        }
        // SAFETY: as above.
        let space = unsafe { &mut *self.0.get() };
        let is_last = block.addr() + layout.size() == space.next;
        if is_last && size < LARGE && block.addr() + size <= space.end {
            space.next = block.addr() + size;
            return block;
        }
        // SAFETY: the size isn't zero, and the alignment is a block's.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are as long, and the new one is nobody else's.
            unsafe { ptr::copy_nonoverlapping(block, new, layout.size().min(size)) };
            // SAFETY: the caller has it no more.
            unsafe { self.dealloc(block, layout) };
        }
        new
    }
}

// What the compiler calls for copies and comparisons. In the processor's own words, for the compiler would make
// a loop into a call of the very function. `memcmp` tells an order only by its sign.

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: by the caller both are `count` bytes long; the direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: what is written is behind what is read.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: by the caller both are `count` bytes long, here more than none; read and written from the end,
    // and the direction flag is clear again as the ABI wants it.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") count => _,
            inout("rdi") to.add(count - 1) => _,
            inout("rsi") from.add(count - 1) => _,
            options(nostack),
        );
    }
    to
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: c_int, count: usize) -> *mut u8 {
    // SAFETY: by the caller it is `count` bytes long.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") count => _,
            inout("rdi") to => _,
            in("eax") byte,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> c_int {
    let (above, below): (u8, u8);
    // SAFETY: by the caller both are `count` bytes long. Of none the flags are those of two equal numbers.
    unsafe {
        asm!(
            "cmp rcx, rcx",
            "repe cmpsb",
            "seta {above}",
            "setb {below}",
            above = out(reg_byte) above,
            below = out(reg_byte) below,
            inout("rcx") count => _,
            inout("rsi") left => _,
            inout("rdi") right => _,
            options(nostack, readonly),
        );
    }
    c_int::from(above) - c_int::from(below)
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> c_int {
    // SAFETY: as the caller's.
    unsafe { memcmp(left, right, count) }
}

/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(string: *const c_char) -> usize {
    let left: usize;
    // SAFETY: by the caller there is a NUL byte.
    unsafe {
        asm!(
            "repne scasb",
            inout("rcx") usize::MAX => left,
            inout("rdi") string => _,
            in("al") 0_u8,
            options(nostack, readonly),
        );
    }
    // One was counted down for the NUL byte too.
    usize::MAX - left - 1
}

// The core libraries come compiled for panics that unwind. Here a panic ends the process, and nothing calls these.

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    exit(125)
}
