/* contexts.pml: two contexts on one node, calls posted and waited for apart. Each context has its own words, windows and epochs, and
 * Q = 1: a context's next call is posted only after its last was waited for. All ranks post POSTS calls, to contexts and of kinds
 * chosen freely, in the same order; when each rank posts and waits is free. A call is
 *   early   (latency path) post: header, arrived, rows into the parity's slots, finished; wait: all arrivals, all finishes, rows
 *   late    (throughput path) post: header, arrived; wait: all arrivals, rows, finished, all finishes, rows. One copy of the slots.
 * A post never waits. Waiting for a call first finishes everything that was posted before it, so what is finished is always the
 * first part of what was posted. Memory holds what lies in it unread, as in exchange.pml.
 *
 * Must fail: ANY_ORDER (waits for a call without those before it); OTHER_POSTS (rank 0 posts to the contexts the other way round);
 *   BEYOND (a second call of a context posted before the first was waited for); ONE_WINDOW (both contexts use the same memory).
 */
#ifndef N
#define N 2
#endif
#ifndef POSTS
#define POSTS 6
#endif
#ifdef ONE_WINDOW
#define WINDOW(c) 0
#else
#define WINDOW(c) (c)
#endif
#ifdef BEYOND
#define Q 2
#else
#define Q 1
#endif

#define WORD(c, at, of) (((c) * N + (at)) * N + (of))
#define SLOT(c, m, late, at, of) slot_[((WINDOW(c) * 3 + ((late) -> 2 : (m) % 2)) * N + (at)) * N + (of)]
#define HEADER(c, m, at, of) header_[((WINDOW(c) * 2 + (m) % 2) * N + (at)) * N + (of)]

bit context_[POSTS + 1]; /* of the posts, in order */
bit late_[POSTS];
byte epoch_[POSTS];  /* number of the call in its context, from 1 */
byte arrived[2 * N * N];
byte finished[2 * N * N];
byte header_[2 * 2 * N * N];
byte slot_[2 * 3 * N * N];

#ifdef OTHER_POSTS
#define CONTEXT(x) (me == 0 -> 1 - context_[x] : context_[x])
#else
#define CONTEXT(x) context_[x]
#endif

inline write(cell, tag) {
  assert(cell == 0); /* nothing is overwritten unread */
  cell = tag
}
inline read(cell, tag) {
  assert(cell == tag);
  cell = 0
}

/* A post, and the sending of late rows, has no wait in it and is one step. */
inline send_rows(x) {
  i = 0;
  do :: i < N -> if :: i != me -> write(SLOT(CONTEXT(x), epoch_[x], late_[x], i, me), x + 1) :: else fi; i++ :: else -> break od;
  i = 0;
  do :: i < N -> if :: i != me -> finished[WORD(CONTEXT(x), i, me)] = epoch_[x] :: else fi; i++ :: else -> break od
}

inline post(x) {
  i = 0;
  do :: i < N -> if :: i != me -> write(HEADER(CONTEXT(x), epoch_[x], i, me), x + 1) :: else fi; i++ :: else -> break od;
  i = 0;
  do :: i < N -> if :: i != me -> arrived[WORD(CONTEXT(x), i, me)] = epoch_[x] :: else fi; i++ :: else -> break od;
  if :: late_[x] == 0 -> send_rows(x) :: else fi;
  i = 0
}

#define HAVE_ALL(word, c, m) (word[WORD(c, me, (me + 1) % N)] >= (m) && word[WORD(c, me, (me + N - 1) % N)] >= (m))

/* Peers are waited for in turn; who has seen the last could as well have looked at all of them then. */
inline wait(x) {
  atomic {
    HAVE_ALL(arrived, CONTEXT(x), epoch_[x]);
    i = 0;
    do :: i < N -> if :: i != me -> read(HEADER(CONTEXT(x), epoch_[x], me, i), x + 1) :: else fi; i++ :: else -> break od;
    if :: late_[x] == 1 -> send_rows(x) :: else fi;
    i = 0
  };
  atomic {
    HAVE_ALL(finished, CONTEXT(x), epoch_[x]);
    i = 0;
    do :: i < N -> if :: i != me -> read(SLOT(CONTEXT(x), epoch_[x], late_[x], me, i), x + 1) :: else fi; i++ :: else -> break od;
    i = 0;
    waited[CONTEXT(x)] = epoch_[x];
    x = 0
  }
}

#define MAY_POST (posted < POSTS && epoch_[posted] <= waited[CONTEXT(posted)] + Q)
#define IS_OPEN(x) ((x) < posted && epoch_[x] > waited[CONTEXT(x)])

proctype rank(byte me) {
  byte posted = 0, i = 0, x = 0;
  byte waited[2]; /* calls of a context that were waited for */
  do
  :: atomic { MAY_POST -> post(posted); posted++ }
  :: atomic {
       posted > waited[0] + waited[1] ->
       x = 0;
       do :: IS_OPEN(x) -> break :: else -> x++ od; /* the oldest */
#ifdef ANY_ORDER
       if
       :: skip
       :: IS_OPEN(x + 1) && context_[x] != context_[x + 1] -> x++
       fi;
#endif
       i = 0
     };
     wait(x)
  :: waited[0] + waited[1] == POSTS -> break
  od
}

init {
  byte r = 0, c;
  byte calls[2];
  atomic {
    do
    :: r < POSTS ->
       if :: c = 0 :: r > 0 -> c = 1 fi; /* the first post's context is called 0 */
       context_[r] = c;
       calls[c]++;
       epoch_[r] = calls[c];
       if :: late_[r] = 0 :: late_[r] = 1 fi;
       r++
    :: else -> break
    od;
    calls[0] = 0;
    calls[1] = 0;
    c = 0;
    r = 0;
    do :: r < N -> run rank(r); r++ :: else -> break od
  }
}
