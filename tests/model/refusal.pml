/* refusal.pml: a rank may refuse a call (wrong argument found before anything was sent). It still takes its epoch, signals like
 * everybody, and all ranks must end that call with the same verdict: refused, if any rank refused it.
 *
 * N ranks, CALLS calls, nobody waits before its `finished` signal went out (latency path), or all wait for all arrivals first (PRE:
 * throughput path). Where the refusal travels is the question:
 *   default  in a call header that the peer keeps per parity of the epoch, written before the arrival word
 *   WORD     in the arrival word itself: a peer that is one call ahead has overwritten it (must fail)
 *   ONE      in a header without parities (must fail)
 *
 *   spin -a -DN=3 -DCALLS=3 refusal.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 4
#endif
#ifdef ONE
#define PARITY(m) 0
#else
#define PARITY(m) ((m) % 2)
#endif
#define PAIR(d, s) ((d) * N + (s))
#define HEADER(d, m, s) (((d) * 2 + PARITY(m)) * N + (s))

byte arrived[N * N];         /* epoch that the source has begun                 */
bit word_refused[N * N];     /* WORD: refusal bit beside it, written atomically */
byte finished[N * N];        /* epoch that the source has sent all of           */
byte header_epoch[N * 2 * N];
bit header_refused[N * 2 * N];
bit refused_by_any[CALLS + 1]; /* the truth: complete once all have arrived       */

proctype rank(byte me) {
  byte m = 1, i;
  bit refuse, verdict;
  do
  :: m > CALLS -> break
  :: m <= CALLS ->
     if
     :: refuse = 0
     :: refuse = 1; refused_by_any[m] = 1
     fi;
     verdict = refuse;
     i = 0;
     do
     :: i < N ->
        if
        :: i != me ->
           header_epoch[HEADER(i, m, me)] = m;
           header_refused[HEADER(i, m, me)] = refuse;
           atomic { arrived[PAIR(i, me)] = m; word_refused[PAIR(i, me)] = refuse }
        :: else
        fi;
        i++
     :: else -> break
     od;
#ifdef PRE
     i = 0;
     do :: i < N -> (i == me || arrived[PAIR(me, i)] >= m); i++ :: else -> break od;
#endif
     i = 0;
     do :: i < N -> if :: i != me -> finished[PAIR(i, me)] = m :: else fi; i++ :: else -> break od;
     i = 0;
     do
     :: i < N ->
        if
        :: i != me ->
           (arrived[PAIR(me, i)] >= m);
#ifdef WORD
           verdict = verdict | word_refused[PAIR(me, i)]
#else
           assert(header_epoch[HEADER(me, m, i)] == m);
           verdict = verdict | header_refused[HEADER(me, m, i)]
#endif
        :: else
        fi;
        i++
     :: else -> break
     od;
     i = 0;
     do :: i < N -> (i == me || finished[PAIR(me, i)] >= m); i++ :: else -> break od;
     assert(verdict == refused_by_any[m]);
     m++
  od
}

init {
  byte r = 0;
  atomic { do :: r < N -> run rank(r); r++ :: else -> break od }
}
