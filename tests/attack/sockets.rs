//! Attacks by sockets.

use crate::attack::Held::No;
use crate::attack::{Attack, Who};

pub(crate) const ATTACKS: &[Attack] = &[
    Attack::new("connect by TCP", "python3 $PROGRAMS/sockets.py tcp"),
    Attack::new("connect by TCP without `connect`", "python3 $PROGRAMS/sockets.py fast_open"),
    Attack::new("connect to the policy service", "python3 $PROGRAMS/sockets.py service"),
    Attack::new("exchange UDP datagrams", "python3 $PROGRAMS/sockets.py udp"),
    Attack::new("open a raw socket", "python3 $PROGRAMS/sockets.py raw").by(Who::Root),
    Attack::new("open a packet socket", "python3 $PROGRAMS/sockets.py packet").by(Who::Root),
    Attack::new("open a netlink socket", "python3 $PROGRAMS/sockets.py netlink"),
    Attack::new("open a socket of the kernel's ciphers", "python3 $PROGRAMS/sockets.py alg"),
    Attack::new("open a socket to the machine's host", "python3 $PROGRAMS/sockets.py vsock"),
    Attack::new("connect to a named Unix socket, as D-Bus has", "python3 $PROGRAMS/sockets.py bus"),
    Attack::new("connect to an abstract Unix socket", "python3 $PROGRAMS/sockets.py hidden"),
    Attack::new("send to an abstract Unix socket", "python3 $PROGRAMS/sockets.py hidden_log"),
    Attack::new("connect one of a pair to an abstract Unix socket", "python3 $PROGRAMS/sockets.py connected_hidden_log"),
    Attack::new("pass a descriptor to a service outside", "python3 $PROGRAMS/sockets.py pass_out"),
    Attack::new("send to a named Unix datagram socket", "python3 $PROGRAMS/sockets.py log").held(
        No,
        No,
        "a filter can't see the address in `sendmsg`; bubblewrap hides the sockets in `/run` and `/tmp`, where those of the system are",
    ),
    Attack::new("connect to a named Unix socket with the network on", "python3 $PROGRAMS/sockets.py bus").with_the_network(),
    Attack::new("connect to an abstract Unix socket with the network on", "python3 $PROGRAMS/sockets.py hidden").with_the_network(),
    Attack::new("open a raw socket with the network on", "python3 $PROGRAMS/sockets.py raw").by(Who::Root).with_the_network(),
    Attack::new("open a packet socket with the network on", "python3 $PROGRAMS/sockets.py packet").by(Who::Root).with_the_network(),
    Attack::new("send to an abstract Unix datagram socket with the network on", "python3 $PROGRAMS/sockets.py hidden_log")
        .with_the_network(),
    Attack::new("connect one of a pair to an abstract Unix socket with the network on", "python3 $PROGRAMS/sockets.py connected_hidden_log")
        .with_the_network(),
    Attack::new("pass a descriptor to a service outside with the network on", "python3 $PROGRAMS/sockets.py pass_out").with_the_network(),
];
