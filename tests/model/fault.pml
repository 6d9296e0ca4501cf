/* fault.pml: a rank dies, or stands still, at any step. N mapped ranks, CALLS calls, each EARLY (header, arrived, row, finished to one
 * peer after the other; then all arrivals, all finishes and rows) or, with LATE, all arrivals, then ROUNDS rounds into two halves,
 * acknowledged by `taken`, then finishes. A waiting rank looks first at its word, then at abort words, then at whether the peer is
 * dead, then at the limit. Whatever it finds, it remembers the culprit, tells all peers by abort words, and makes no more calls.
 * A limit fires only when nothing else can move (long beside everything else), or at any time (SPURIOUS).
 *
 * Proved: every rank that lives ends; none hands a wrong result out; without stalls all name the dead one.
 * STALL: the rank stands still instead of dying: nobody can tell that. WAKE: it goes on once the others have ended.
 * Must fail: NO_ABORT (a rank that gives up keeps it to itself) with NO_LIMIT; NO_LIMIT with STALL.
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#define NEXT(step) ((me + (step)) % N)
#define WORD(at, from) ((at) * N + (from))
#define COUNT(m, count) ((m) * 8 + (count))
#define TAG(m, round, from) (((m) * 4 + (round)) * 4 + (from) + 1)

byte arrived[N * N];
byte finished[N * N];
byte rounds[N * N];
byte taken[N * N];
byte aborted[N * N]; /* 1 + culprit */
byte header_[N * 2 * N];
byte slot_[N * 2 * N];
bit is_dead[N];
bit has_ended[N];
byte victim = N; /* the rank that died or stood still; N = nobody yet */
#define HEADER(at, m, from) header_[((at) * 2 + (m) % 2) * N + (from)]
#define SLOT(at, m, from) slot_[((at) * 2 + (m) % 2) * N + ((from) + (m) / 2) % N]
#define HALF(at, from, round) slot_[((at) * 2 + (round) % 2) * N + (from)]

/* Every step of a rank may be its last. One that stands still looks alive. */
#ifdef WAKE
#define STEP_END \
  if \
  :: atomic { victim == N -> victim = me }; (has_ended[NEXT(1)] && has_ended[NEXT(N - 1)]) \
  :: skip \
  fi
#else
#ifdef STALL
#define LOOKS_DEAD 0
#else
#define LOOKS_DEAD 1
#endif
#define STEP_END \
  if \
  :: atomic { victim == N -> victim = me; is_dead[me] = LOOKS_DEAD; goto gone } \
  :: skip \
  fi
#endif

#ifdef SPURIOUS
#define LIMIT true
#elif defined(NO_LIMIT)
#define LIMIT false
#else
#define LIMIT timeout
#endif

#define ABORTED_BY(from) aborted[WORD(me, from)]
/* One of several reasons to give a wait up. `ready`: what is waited for; `peer`: of whom. */
#define TROUBLE(ready, peer) \
  :: atomic { !(ready) && ABORTED_BY(NEXT(1)) > 0 -> culprit = ABORTED_BY(NEXT(1)) - 1; goto give_up } \
  :: atomic { !(ready) && ABORTED_BY(NEXT(N - 1)) > 0 -> culprit = ABORTED_BY(NEXT(N - 1)) - 1; goto give_up } \
  :: atomic { !(ready) && is_dead[peer] && ABORTED_BY(NEXT(1)) == 0 && ABORTED_BY(NEXT(N - 1)) == 0 -> culprit = peer; goto give_up } \
  :: atomic { LIMIT && !(ready) -> culprit = peer; goto give_up }

proctype rank(byte me) {
  byte m = 0, i = 0, culprit = N;
#ifdef LATE
  byte sent[N], took[N];
#endif
  do
  :: m == CALLS -> goto ended
  :: m < CALLS ->
     m++;
     i = 1;
     do
     :: i < N ->
        HEADER(NEXT(i), m, me) = m;
        STEP_END;
        atomic { arrived[WORD(NEXT(i), me)] = m; i++ };
        STEP_END
     :: else -> i = 1; break
     od;
#ifndef LATE
     do
     :: i < N ->
        SLOT(NEXT(i), m, me) = TAG(m, 0, me);
        STEP_END;
        atomic { finished[WORD(NEXT(i), me)] = m; i++ };
        STEP_END
     :: else -> i = 1; break
     od;
#endif
     do
     :: i < N ->
        if
        :: atomic { arrived[WORD(me, NEXT(i))] >= m -> assert(HEADER(me, m, NEXT(i)) == m) }
        TROUBLE(arrived[WORD(me, NEXT(i))] >= m, NEXT(i))
        fi;
        STEP_END;
        i++
     :: else -> i = 1; break
     od;
#ifdef LATE
#define CAN_SEND(p) (sent[p] < ROUNDS && (sent[p] < 2 || taken[WORD(me, p)] >= COUNT(m, sent[p] - 1)))
#define CAN_TAKE(p) (took[p] < ROUNDS && rounds[WORD(me, p)] >= COUNT(m, took[p] + 1))
#define IS_DONE(p) (sent[p] == ROUNDS && took[p] == ROUNDS)
#define CAN_MOVE (CAN_SEND(NEXT(1)) || CAN_TAKE(NEXT(1)) || CAN_SEND(NEXT(N - 1)) || CAN_TAKE(NEXT(N - 1)))
#define SEND(p) \
  :: atomic { CAN_SEND(p) -> assert(HALF(p, me, sent[p]) == 0); HALF(p, me, sent[p]) = TAG(m, sent[p], me) }; \
     STEP_END; \
     atomic { sent[p]++; rounds[WORD(p, me)] = COUNT(m, sent[p]) }; \
     STEP_END
#define TAKE(p) \
  :: atomic { CAN_TAKE(p) -> assert(HALF(me, p, took[p]) == TAG(m, took[p], p)); HALF(me, p, took[p]) = 0 }; \
     STEP_END; \
     atomic { took[p]++; taken[WORD(p, me)] = COUNT(m, took[p]) }; \
     STEP_END
     do
     SEND(NEXT(1))
     TAKE(NEXT(1))
#if N == 3
     SEND(NEXT(2))
     TAKE(NEXT(2))
     TROUBLE(IS_DONE(NEXT(2)) || CAN_MOVE, NEXT(2))
#endif
     TROUBLE(IS_DONE(NEXT(1)) || CAN_MOVE, NEXT(1))
     :: IS_DONE(NEXT(1)) && IS_DONE(NEXT(N - 1)) -> break
     od;
     atomic { i = 0; do :: i < N -> sent[i] = 0; took[i] = 0; i++ :: else -> i = 1; break od };
     do
     :: i < N -> atomic { finished[WORD(NEXT(i), me)] = m; i++ }; STEP_END
     :: else -> i = 1; break
     od;
#endif
     do
     :: i < N ->
        if
        :: atomic {
             finished[WORD(me, NEXT(i))] >= m ->
#ifndef LATE
             assert(SLOT(me, m, NEXT(i)) == TAG(m, 0, NEXT(i)));
#endif
             skip
           }
        TROUBLE(finished[WORD(me, NEXT(i))] >= m, NEXT(i))
        fi;
        STEP_END;
        i++
     :: else -> i = 1; break
     od
     /* The result is handed out here: everything that was asserted above. */
  od;
give_up:
#if !defined(STALL) && !defined(WAKE) && !defined(SPURIOUS)
  assert(culprit == victim);
#endif
#ifndef NO_ABORT
  i = 1;
  do
  :: i < N -> atomic { if :: aborted[WORD(NEXT(i), me)] == 0 -> aborted[WORD(NEXT(i), me)] = culprit + 1 :: else fi; i++ }; STEP_END
  :: else -> break
  od;
#endif
ended:
  has_ended[me] = 1;
gone: skip
}

init {
  byte r = 0;
  atomic { do :: r < N -> run rank(r); r++ :: else -> break od }
}
