#include "textflag.h"

// Go's runtime starts at once: `begin` was not tried on this architecture. See early.go.
TEXT ·start(SB), NOSPLIT|NOFRAME, $0
	B	_rt0_arm64_linux(SB)
