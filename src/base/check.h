// HEADLANE_DCHECK: states an invariant of the library itself, never a demand on user input (that gets a Status).
//
// It traps in debug builds and in builds with HEADLANE_ENABLE_DCHECK (the sanitizer presets), and is not evaluated
// elsewhere. It prints nothing: the library has no business on an engine's stderr, and a debugger or sanitizer shows
// the place.
#ifndef HEADLANE_SRC_BASE_CHECK_H_
#define HEADLANE_SRC_BASE_CHECK_H_

#if !defined(NDEBUG) || defined(HEADLANE_ENABLE_DCHECK)
#define HEADLANE_DCHECK_IS_ON 1
#define HEADLANE_DCHECK(condition) (static_cast<bool>(condition) ? static_cast<void>(0) : __builtin_trap())
#else
#define HEADLANE_DCHECK_IS_ON 0
// sizeof keeps the names used, without evaluating anything.
#define HEADLANE_DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#endif

#endif  // HEADLANE_SRC_BASE_CHECK_H_
