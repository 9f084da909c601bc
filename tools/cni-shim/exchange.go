package main

import (
	"syscall"
	"unsafe"
)

// What is in this file also runs before Go's runtime has started (see early.go). So it allocates nothing, and calls
// only itself and raw system calls. The directive go:nosplit keeps checks of the runtime's stack out of it.

const (
	configBytesMax = 1 << 20
	answerBytesMax = 8 << 20
	pathBytesMax   = 107 // unix(7)
	deadlineS      = 30  // longer than a burst of pods takes; the container runtime tries again, and waits for minutes
	connectS       = 5   // a queue of requests that stays full that long belongs to a stopped daemon
	secondNs       = 1_000_000_000
	clockMonotonic = 1 // linux/time.h
	pollIn         = 1 // asm-generic/poll.h
	pollOut        = 4
	pipeBytes      = 4096 // a pipe that can be written takes as much without waiting: see poll(2) and pipe(7)
	cloneNewNet    = 0x40000000
)

// outcome says how far a request got.
type outcome uint8

const (
	answered outcome = iota // `answer` holds what to print, and the exit status
	unread                  // stdin cannot be read; `failed` says why
	unending                // stdin did not end before the deadline
	tooLong                 // stdin has more than configBytesMax
	unclear                 // the path of the daemon's socket is not a plain string; a JSON parser must find it
	refused                 // the daemon cannot be reached, or the connection failed; `failed` says why
	closed                  // the daemon closed the connection without a whole answer
	late                    // the daemon did not answer before the deadline
)

// environment is what the container runtime passes besides the configuration. Each text ends with a zero byte.
var environment struct{ command, container, namespace, ifname, arguments []byte }

// The memory of the only request. The kernel provides pages of it when they are first written.
var (
	config      [configBytesMax + 1]byte
	configBytes int
	answer      [answerBytesMax]byte
	answerBytes int
	failed      syscall.Errno
	deadlineNs  int64
	vectors     [16]syscall.Iovec
	parts       int
	digits      [4]byte
	rights      struct { // cmsghdr and descriptors, see unix(7)
		length      uint64
		level, kind int32
		files       [4]int32
	}
)

var (
	defaultSocket = []byte("/run/muster/network/cni.sock")
	socketKey     = []byte("socket")
	zero          = []byte{0}
	filesInside   = []byte("netns,netlink")
	settings6     = [...][]byte{[]byte(",disable_ipv6"), []byte(",accept_ra")}
	paths6        = [...][]byte{
		[]byte("/proc/sys/net/ipv6/conf/default/disable_ipv6\x00"),
		[]byte("/proc/sys/net/ipv6/conf/default/accept_ra\x00"),
	}
)

// exchange reads the configuration and asks the daemon.
//
//go:nosplit
func exchange() outcome {
	if result := readConfig(); result != answered {
		return result
	}
	path, isPlain := socketPath()
	if !isPlain {
		return unclear
	}
	return ask(path)
}

// readConfig reads stdin to its end. The deadline of the whole request begins here.
//
//go:nosplit
func readConfig() outcome {
	deadlineNs = nowNs() + deadlineS*secondNs
	for configBytes < len(config) {
		if nowNs() >= deadlineNs {
			return unending
		}
		isReady, number := await(0, pollIn)
		if number == syscall.EINTR || number == 0 && !isReady {
			continue
		}
		if number != 0 {
			failed = number
			return unread
		}
		count, number := read(0, config[configBytes:])
		if number == syscall.EINTR || number == syscall.EAGAIN {
			continue
		}
		if number != 0 {
			failed = number
			return unread
		}
		if count == 0 {
			return answered
		}
		configBytes += count
	}
	return tooLong
}

// socketPath returns the path of the daemon's socket. It follows the structure of the configuration only as far as it
// must, since the daemon checks the rest. It returns false if the path is not a plain string, or a bracket is missing.
//
//go:nosplit
func socketPath() ([]byte, bool) {
	path := defaultSocket
	depth, isValue, isSocket := 0, false, false
	for at := 0; at < configBytes; at++ {
		switch config[at] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ':':
			isValue = isValue || depth == 1
		case ',':
			if depth == 1 {
				if isSocket {
					return nil, false
				}
				isValue = false
			}
		case '"':
			begin, isPlain := at+1, true
			for at++; at < configBytes && config[at] != '"'; at++ {
				if config[at] == '\\' {
					isPlain = false
					at++
				}
			}
			if depth != 1 {
				continue
			}
			if !isPlain || at >= configBytes {
				return nil, false
			}
			text := config[begin:at]
			if !isValue {
				isSocket = equal(text, socketKey)
			} else if isSocket {
				path, isSocket = text, false
			}
		}
	}
	if len(path) == 0 {
		path = defaultSocket
	}
	return path, depth == 0 && !isSocket && configBytes > 0
}

// ask sends the request to the daemon and receives the answer.
//
//go:nosplit
func ask(path []byte) outcome {
	if len(path) > pathBytesMax {
		failed = syscall.EINVAL
		return refused
	}
	compose()
	connection, number := descriptor(syscall.RawSyscall(
		syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))
	if number != 0 {
		failed = number
		return refused
	}
	result := connect(connection, path)
	if result == answered {
		result = send(connection)
	}
	if result == answered {
		syscall.RawSyscall(syscall.SYS_SHUTDOWN, connection, syscall.SHUT_WR, 0)
		result = receive(connection)
	}
	return result
}

// compose puts the request together: texts that end with a zero byte, and then the configuration. The daemon reads it
// in muster/network/cni/invocation.py.
//
//go:nosplit
func compose() {
	add(environment.command)
	add(environment.container)
	add(environment.namespace)
	add(environment.ifname)
	add(environment.arguments)
	number := enter()
	add(zero)
	if number != 0 {
		at := len(digits)
		for ; number != 0 && at > 0; number /= 10 {
			at--
			digits[at] = '0' + byte(number%10)
		}
		add(digits[at:])
	}
	add(zero)
	add(config[:configBytes])
}

// enter moves this thread into the pod's network namespace. It opens files for the daemon and adds their names to the
// request: the namespace, a netlink socket in it, and the settings with which IPv6 begins on new interfaces there.
//
//go:nosplit
func enter() syscall.Errno {
	if len(environment.namespace) < 2 {
		return 0 // not even a byte before the zero
	}
	flags := uintptr(syscall.O_RDONLY | syscall.O_CLOEXEC | syscall.O_NONBLOCK) // a pipe would wait for its other end
	namespace, number := open(environment.namespace, flags)
	if number != 0 {
		return number
	}
	if _, _, number := syscall.RawSyscall(sysSetns, namespace, cloneNewNet, 0); number != 0 {
		return number // not a namespace: a file that was left over after a reboot
	}
	route, number := descriptor(syscall.RawSyscall(
		syscall.SYS_SOCKET, syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE))
	if number != 0 {
		return number
	}
	add(filesInside)
	pass(namespace)
	pass(route)
	for index := range paths6 {
		file, number := open(paths6[index], syscall.O_WRONLY|syscall.O_CLOEXEC)
		if number == 0 { // without IPv6 they are missing
			add(settings6[index])
			pass(file)
		}
	}
	return 0
}

//go:nosplit
func connect(connection uintptr, path []byte) outcome {
	address := syscall.RawSockaddrUnix{Family: syscall.AF_UNIX}
	for index, each := range path {
		address.Path[index] = int8(each)
	}
	length := unsafe.Offsetof(address.Path) + uintptr(len(path)) + 1
	for {
		if !limit(connection, syscall.SO_SNDTIMEO, connectS*secondNs) {
			return late
		}
		_, _, number := syscall.RawSyscall(
			syscall.SYS_CONNECT, connection, uintptr(unsafe.Pointer(&address)), length)
		if number == 0 {
			return answered
		}
		if number != syscall.EINTR { // Go's scheduler interrupts system calls
			failed = number
			return refused
		}
	}
}

//go:nosplit
func send(connection uintptr) outcome {
	message := syscall.Msghdr{Iov: &vectors[0], Iovlen: uint64(parts)}
	if rights.length > 0 {
		message.Control = (*byte)(unsafe.Pointer(&rights))
		message.Controllen = rights.length
	}
	for message.Iovlen > 0 {
		if !limit(connection, syscall.SO_SNDTIMEO, deadlineS*secondNs) {
			return late
		}
		sent, _, number := syscall.RawSyscall(
			syscall.SYS_SENDMSG, connection, uintptr(unsafe.Pointer(&message)), syscall.MSG_NOSIGNAL)
		if number == syscall.EINTR || number == syscall.EAGAIN {
			continue
		}
		if number != 0 {
			failed = number
			return refused
		}
		message.Control, message.Controllen = nil, 0
		for left := uint64(sent); message.Iovlen > 0; {
			part := message.Iov
			if left < part.Len {
				part.Base = (*byte)(unsafe.Add(unsafe.Pointer(part.Base), left))
				part.Len -= left
				break
			}
			left -= part.Len
			message.Iov = (*syscall.Iovec)(unsafe.Add(unsafe.Pointer(part), unsafe.Sizeof(*part)))
			message.Iovlen--
		}
	}
	return answered
}

// receive reads until the answer is whole: its last two bytes are a zero and the exit status. JSON has no zero byte.
//
//go:nosplit
func receive(connection uintptr) outcome {
	for {
		if !limit(connection, syscall.SO_RCVTIMEO, deadlineS*secondNs) {
			return late
		}
		count, number := read(connection, answer[answerBytes:])
		if number == syscall.EINTR || number == syscall.EAGAIN {
			continue
		}
		if number != 0 {
			failed = number
			return refused
		}
		if count == 0 {
			return closed
		}
		answerBytes += count
		if answerBytes > 1 && answer[answerBytes-2] == 0 {
			return answered
		}
	}
}

// finish prints the answer and ends the process. If stdout does not take all of it before the deadline, the request has
// failed: a part of an answer must not look like success.
//
//go:nosplit
func finish() {
	end := answerBytes - 2
	status := uintptr(answer[end+1] - '0')
	for begin := 0; begin < end; {
		isReady, number := await(1, pollOut)
		if isReady {
			var count uintptr
			count, _, number = syscall.RawSyscall(
				syscall.SYS_WRITE, 1, uintptr(unsafe.Pointer(&answer[begin])), uintptr(min(end-begin, pipeBytes)))
			if number == 0 {
				begin += int(count)
				continue
			}
		}
		if number != syscall.EINTR && number != syscall.EAGAIN || nowNs() >= deadlineNs {
			status = 1
			break
		}
	}
	syscall.RawSyscall(syscall.SYS_EXIT_GROUP, status, 0, 0)
}

//go:nosplit
func add(part []byte) {
	if len(part) > 0 {
		vectors[parts] = syscall.Iovec{Base: &part[0], Len: uint64(len(part))}
		parts++
	}
}

//go:nosplit
func pass(file uintptr) {
	if rights.length == 0 {
		rights.length = uint64(unsafe.Offsetof(rights.files))
		rights.level, rights.kind = syscall.SOL_SOCKET, syscall.SCM_RIGHTS
	}
	rights.files[(rights.length-uint64(unsafe.Offsetof(rights.files)))/4] = int32(file)
	rights.length += 4
}

// limit bounds the next call on a socket by a time and by the deadline. It returns false after the deadline.
//
//go:nosplit
func limit(connection, option uintptr, mostNs int64) bool {
	leftNs := min(deadlineNs-nowNs(), mostNs)
	if leftNs <= 0 {
		return false
	}
	wait := syscall.Timeval{Sec: leftNs / secondNs, Usec: leftNs%secondNs/1000 + 1}
	if wait.Usec >= 1_000_000 {
		wait.Usec = 999_999
	}
	syscall.RawSyscall6(syscall.SYS_SETSOCKOPT, connection, syscall.SOL_SOCKET, option,
		uintptr(unsafe.Pointer(&wait)), unsafe.Sizeof(wait), 0)
	return true
}

// await waits until a file can be read or written, or until the deadline.
//
//go:nosplit
func await(file int32, events int16) (bool, syscall.Errno) {
	leftNs := max(deadlineNs-nowNs(), 0)
	polled := struct {
		fd              int32
		events, revents int16
	}{file, events, 0}
	wait := syscall.Timespec{Sec: leftNs / secondNs, Nsec: leftNs % secondNs}
	ready, _, number := syscall.RawSyscall6(
		syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&polled)), 1, uintptr(unsafe.Pointer(&wait)), 0, 0, 0)
	return ready == 1, number
}

//go:nosplit
func nowNs() int64 {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return now.Sec*secondNs + now.Nsec
}

//go:nosplit
func read(file uintptr, into []byte) (int, syscall.Errno) {
	if len(into) == 0 {
		return 0, syscall.ENOBUFS
	}
	count, _, number := syscall.RawSyscall(
		syscall.SYS_READ, file, uintptr(unsafe.Pointer(&into[0])), uintptr(len(into)))
	return int(count), number
}

//go:nosplit
func open(path []byte, flags uintptr) (uintptr, syscall.Errno) {
	const here = -100 // AT_FDCWD
	relative := here
	return descriptor(syscall.RawSyscall6(
		syscall.SYS_OPENAT, uintptr(relative), uintptr(unsafe.Pointer(&path[0])), flags, 0, 0, 0))
}

//go:nosplit
func descriptor(file, _ uintptr, number syscall.Errno) (uintptr, syscall.Errno) {
	return file, number
}

//go:nosplit
func equal(one, other []byte) bool {
	if len(one) != len(other) {
		return false
	}
	for index := range one {
		if one[index] != other[index] {
			return false
		}
	}
	return true
}
